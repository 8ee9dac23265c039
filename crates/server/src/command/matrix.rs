//! `MATRIX`, which Redis does not have: looking after the devices behind the engine.

use super::{Answer, Call};

/// `MATRIX STATUS`, `MATRIX REPLACE device [FRESH] [LIMIT bytes]`, `MATRIX RETIRE device`, `MATRIX ADDGROUP [LIMIT bytes]`,
/// `MATRIX SCRUB [DEVICE device]`: what it is, or that it has begun. What the words mean whoever looks after the
/// devices knows.
pub(super) fn matrix(call: &mut Call<'_, '_>) -> Answer {
    let Some(administration) = &call.host.config.administration else {
        return Err("NOMATRIX the store is no matrix".into());
    };
    let words: Vec<String> =
        call.words.from(1).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = administration.run(&words)?;
    call.reply.bulk(text.as_bytes());
    Ok(())
}
