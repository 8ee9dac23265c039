//! The process itself.

use super::durability::until_saved;
use super::{Answer, Call, Failure, SYNTAX, is};
use crate::resp::number::parse_f64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `TIME`
pub(super) fn time(call: &mut Call<'_, '_>) -> Answer {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.reply.array(2);
    let mut digits = itoa::Buffer::new();
    call.reply.bulk(digits.format(since.as_secs()).as_bytes());
    call.reply.bulk(digits.format(since.subsec_micros()).as_bytes());
    Ok(())
}

/// `SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE] [ABORT]`: acknowledged writes are durable anyway
pub(super) fn shutdown(call: &mut Call<'_, '_>) -> Answer {
    let (mut saves, mut saves_not, mut aborts) = (false, false, false);
    for word in call.words.from(1) {
        match word {
            _ if is(word, "SAVE") => saves = true,
            _ if is(word, "NOSAVE") => saves_not = true,
            _ if is(word, "NOW") || is(word, "FORCE") => {}
            _ if is(word, "ABORT") => aborts = true,
            _ => return Err(SYNTAX.into()),
        }
    }
    if saves && saves_not || aborts && call.words.len() > 2 {
        return Err(SYNTAX.into());
    }
    if aborts {
        return Err("ERR No shutdown in progress.".into());
    }
    if saves {
        until_saved(call, |host| &host.saves, None)?;
    }
    call.session.is_dropped = true;
    call.host.end();
    Ok(())
}

/// `DEBUG SLEEP seconds`, during which no client is served; `DEBUG SET-ACTIVE-EXPIRE 0|1`
pub(super) fn debug(call: &mut Call<'_, '_>) -> Answer {
    const LONGEST: f64 = 3600.0;
    match call.word(1) {
        word if is(word, "SLEEP") && call.words.len() == 3 => {
            let seconds = parse_f64(call.word(2)).unwrap_or(0.0).clamp(0.0, LONGEST);
            std::thread::sleep(Duration::from_secs_f64(seconds));
            call.reply.ok();
            Ok(())
        }
        // A record that has expired is never seen, whether its bytes have been reclaimed or not.
        word if is(word, "SET-ACTIVE-EXPIRE") && call.words.len() == 3 => {
            call.reply.ok();
            Ok(())
        }
        word if is(word, "HELP") && call.words.len() == 2 => {
            let lines = [
                "SET-ACTIVE-EXPIRE <0|1>",
                "    Accepted; what has expired is never seen.",
                "SLEEP <seconds>",
                "    Stop the server for <seconds>. Decimals allowed.",
            ];
            call.reply.help("DEBUG", &lines);
            Ok(())
        }
        word => {
            let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
            let text = "Unknown subcommand or wrong number of arguments for";
            Err(Failure::from(format!("ERR {text} '{word}'. Try DEBUG HELP.")))
        }
    }
}
