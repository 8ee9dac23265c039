//! Commands by which clients describe themselves and ask about each other.

use super::table::name_of;
use super::{Answer, Call, Failure, SYNTAX, is};
use crate::clients::{ClientInfo, Running};
use crate::resp::number::parse_i64;
use crate::session::Answers;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// `CLIENT ID`
pub(super) fn id(call: &mut Call<'_, '_>) -> Answer {
    let id = call.session.info.id;
    call.reply.int(i64::try_from(id).unwrap_or(i64::MAX));
    Ok(())
}

/// `CLIENT GETREDIR`: tracking is never on
pub(super) fn get_redirection(call: &mut Call<'_, '_>) -> Answer {
    call.reply.int(-1);
    Ok(())
}

/// `CLIENT GETNAME`
pub(super) fn get_name(call: &mut Call<'_, '_>) -> Answer {
    let names = call.session.info.names.lock();
    if names.name.is_empty() {
        call.reply.null();
    } else {
        call.reply.bulk(names.name.as_bytes());
    }
    Ok(())
}

/// `CLIENT SETNAME connection-name`
pub(super) fn set_name(call: &mut Call<'_, '_>) -> Answer {
    change_name(call, call.word(2))?;
    call.reply.ok();
    Ok(())
}

/// Names the client `name`, or removes its name if that is empty.
pub(super) fn change_name(call: &Call<'_, '_>, name: &[u8]) -> Answer {
    const BAD: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
    call.session.info.names.lock().name = plain(name).ok_or(BAD)?;
    Ok(())
}

/// `name` if it is visible ASCII without spaces.
fn plain(name: &[u8]) -> Option<String> {
    let is_plain = name.iter().all(u8::is_ascii_graphic);
    is_plain.then(|| String::from_utf8_lossy(name).into_owned())
}

/// `CLIENT SETINFO LIB-NAME|LIB-VER value`
pub(super) fn set_info(call: &mut Call<'_, '_>) -> Answer {
    let (attribute, value) = (call.word(2), call.word(3));
    let shown = String::from_utf8_lossy(attribute);
    let is_name = is(attribute, "LIB-NAME");
    if !is_name && !is(attribute, "LIB-VER") {
        return Err(format!("ERR Unrecognized option '{shown}'").into());
    }
    let value = plain(value).ok_or_else(|| {
        let shown = shown.to_ascii_lowercase();
        Failure::from(format!("ERR {shown} cannot contain spaces, newlines or special characters."))
    })?;
    let mut names = call.session.info.names.lock();
    if is_name {
        names.lib_name = value;
    } else {
        names.lib_version = value;
    }
    drop(names);
    call.reply.ok();
    Ok(())
}

/// `CLIENT NO-EVICT ON|OFF`: no client is ever evicted
pub(super) fn no_evict(call: &mut Call<'_, '_>) -> Answer {
    switch(call, |info| &info.no_evict)
}

/// `CLIENT NO-TOUCH ON|OFF`: times of access are never recorded
pub(super) fn no_touch(call: &mut Call<'_, '_>) -> Answer {
    switch(call, |info| &info.no_touch)
}

fn switch(call: &mut Call<'_, '_>, which: fn(&ClientInfo) -> &AtomicBool) -> Answer {
    let on = match call.word(2) {
        word if is(word, "ON") => true,
        word if is(word, "OFF") => false,
        _ => return Err(SYNTAX.into()),
    };
    which(&call.session.info).store(on, Ordering::Relaxed);
    call.reply.ok();
    Ok(())
}

/// `CLIENT REPLY ON|OFF|SKIP`
pub(super) fn reply(call: &mut Call<'_, '_>) -> Answer {
    call.session.answers = match call.word(2) {
        word if is(word, "ON") => Answers::On,
        word if is(word, "OFF") => Answers::Off,
        word if is(word, "SKIP") => match call.session.answers {
            Answers::Off => Answers::Off,
            _ => Answers::SkipNext,
        },
        _ => return Err(SYNTAX.into()),
    };
    if call.session.answers == Answers::On {
        call.reply.ok();
    }
    Ok(())
}

/// `CLIENT INFO`
pub(super) fn info(call: &mut Call<'_, '_>) -> Answer {
    let line = line(&call.session.info, Running::of(call.words.from(0)));
    call.reply.verbatim(&(line + "\n"));
    Ok(())
}

fn line(client: &ClientInfo, running: Running) -> String {
    let latest = name_of(client.command.load(Ordering::Relaxed));
    client.line(latest.unwrap_or("NULL"), running)
}

/// `CLIENT LIST [TYPE NORMAL|MASTER|REPLICA|PUBSUB] [ID client-id [client-id ...]]`
pub(super) fn list(call: &mut Call<'_, '_>) -> Answer {
    let (is_normal, ids) = match call.words.len() {
        2 => (true, None),
        4 if is(call.word(2), "TYPE") => (is_normal_type(call.word(3))?, None),
        4.. if is(call.word(2), "ID") => {
            let ids: Option<HashSet<i64>> = call.words.from(3).map(parse_i64).collect();
            (true, Some(ids.ok_or("ERR Invalid client ID")?))
        }
        _ => return Err(SYNTAX.into()),
    };
    let wanted = |client: &ClientInfo| {
        let id = i64::try_from(client.id).unwrap_or(i64::MAX);
        ids.as_ref().is_none_or(|ids| ids.contains(&id))
    };
    let mut text = String::new();
    for client in call.host.clients.all() {
        if is_normal && wanted(&client) {
            let is_own = client.id == call.session.info.id;
            let running = if is_own { Running::of(call.words.from(0)) } else { Running::default() };
            text += &line(&client, running);
            text.push('\n');
        }
    }
    call.reply.verbatim(&text);
    Ok(())
}

/// True if clients of this type may exist here.
pub(super) fn is_normal_type(word: &[u8]) -> Result<bool, Failure> {
    match word {
        _ if is(word, "NORMAL") => Ok(true),
        _ if ["MASTER", "SLAVE", "REPLICA", "PUBSUB"].iter().any(|name| is(word, name)) => {
            Ok(false)
        }
        _ => {
            let word = String::from_utf8_lossy(word);
            Err(format!("ERR Unknown client type '{word}'").into())
        }
    }
}

/// `CLIENT HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "CLIENT",
        &[
            "GETNAME",
            "    Return the name of the current connection.",
            "GETREDIR",
            "    Return the client ID we are redirecting to when tracking is enabled.",
            "ID",
            "    Return the ID of the current connection.",
            "INFO",
            "    Return information about the current client connection.",
            "KILL <ip:port>",
            "    Kill connection made from <ip:port>.",
            "KILL <option> <value> [<option> <value> [...]]",
            "    Kill connections. Options are:",
            "    * ADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made from the specified address",
            "    * LADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made to specified local address",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Kill connections by type.",
            "    * USER <username>",
            "      Kill connections authenticated by <username>.",
            "    * SKIPME (YES|NO)",
            "      Skip killing current connection (default: yes).",
            "    * ID <client-id>",
            "      Kill connections by client id.",
            "LIST [options ...]",
            "    Return information about client connections. Options:",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Return clients of specified type.",
            "    * ID <client-id> [<client-id> ...]",
            "      Return clients of specified IDs only.",
            "UNPAUSE",
            "    Stop the current client pause, resuming traffic.",
            "PAUSE <timeout> [WRITE|ALL]",
            "    Suspend all, or just write, clients for <timeout> milliseconds.",
            "REPLY (ON|OFF|SKIP)",
            "    Control the replies sent to the current connection.",
            "SETINFO (LIB-NAME|LIB-VER) <value>",
            "    Set what the client library calls itself.",
            "SETNAME <name>",
            "    Assign the name <name> to the current connection.",
            "NO-EVICT (ON|OFF)",
            "    Accepted; no client is ever evicted.",
            "NO-TOUCH (ON|OFF)",
            "    Accepted; times of access are never recorded.",
        ],
    );
    Ok(())
}
