//! Functions, which this server does not have: commands that client libraries and tests send before they begin.

use super::{Answer, Call, Failure, is, quoted};

/// `FUNCTION FLUSH [ASYNC|SYNC]`
pub(super) fn flush(call: &mut Call<'_, '_>) -> Answer {
    match call.words.len() {
        2 => {}
        3 if is(call.word(2), "ASYNC") || is(call.word(2), "SYNC") => {}
        3 => return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into()),
        _ => {
            let text = b"ERR unknown subcommand or wrong number of arguments for '";
            let word = quoted(call.word(1), 128);
            return Err(Failure::Echoed([text, word, b"'. Try FUNCTION HELP."].concat()));
        }
    }
    call.reply.ok();
    Ok(())
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`
pub(super) fn list(call: &mut Call<'_, '_>) -> Answer {
    let mut words = call.words.from(2);
    while let Some(word) = words.next() {
        if is(word, "LIBRARYNAME") {
            words.next().ok_or("ERR library name argument was not given")?;
        } else if !is(word, "WITHCODE") {
            let text = [b"ERR Unknown argument ", word].concat();
            return Err(Failure::Echoed(text));
        }
    }
    call.reply.array(0);
    Ok(())
}

/// `FUNCTION HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "FUNCTION",
        &[
            "FLUSH [ASYNC|SYNC]",
            "    Delete all the libraries, of which there are none.",
            "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
            "    Return all the libraries, of which there are none.",
        ],
    );
    Ok(())
}
