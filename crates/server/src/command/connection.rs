//! The connection itself: authentication, protocol version, liveness.

use super::transaction::forget_watches;
use super::{Answer, Call, Failure, NOT_INTEGER, SYNTAX, client, is, monitor};
use crate::resp::number::parse_i64;
use crate::resp::reply::Proto;
use crate::session::Answers;
use crate::{ClusterInfo, Standing};
use std::sync::atomic::Ordering;

/// The version of Redis whose behaviour is reproduced.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// `PING [message]`
pub(super) fn ping(call: &mut Call<'_, '_>) -> Answer {
    match call.words.len() {
        1 => call.reply.out.extend_from_slice(b"+PONG\r\n"),
        2 => call.reply.bulk(call.words.at(1)),
        _ => return Err(call.wrong_arity()),
    }
    Ok(())
}

/// `ECHO message`
pub(super) fn echo(call: &mut Call<'_, '_>) -> Answer {
    call.reply.bulk(call.words.at(1));
    Ok(())
}

/// There is one database, number 0.
pub(super) fn check_database(number: &[u8]) -> Answer {
    match parse_i64(number) {
        Some(0) => Ok(()),
        Some(number) if i32::try_from(number).is_ok() => Err("ERR DB index is out of range".into()),
        Some(_) => {
            let (min, max) = (i32::MIN, i32::MAX);
            Err(format!("ERR value is out of range, value must between {min} and {max}").into())
        }
        None => Err(NOT_INTEGER.into()),
    }
}

/// `SELECT index`: there is one database, number 0
pub(super) fn select(call: &mut Call<'_, '_>) -> Answer {
    check_database(call.word(1))?;
    call.reply.ok();
    Ok(())
}

/// `QUIT`
pub(super) fn quit(call: &mut Call<'_, '_>) -> Answer {
    call.session.begins_anew = true;
    call.session.is_closing = true;
    call.reply.ok();
    Ok(())
}

/// `POST …`, `Host: …`: a browser that another site's page made to connect to us
pub(super) fn not_http(call: &mut Call<'_, '_>) -> Answer {
    call.session.is_dropped = true;
    Ok(())
}

/// `RESET`
pub(super) fn reset(call: &mut Call<'_, '_>) -> Answer {
    call.session.begins_anew = true;
    call.session.queue = None;
    call.session.is_read_only = false;
    forget_watches(call.session, &call.host.watched);
    monitor::stop(call.session, call.host);
    call.session.set_proto(Proto::Two);
    call.session.answers = Answers::On;
    call.session.is_authenticated = !call.host.settings.has_password.load(Ordering::Acquire);
    let info = &call.session.info;
    info.names.lock().name.clear();
    info.no_evict.store(false, Ordering::Relaxed);
    info.no_touch.store(false, Ordering::Relaxed);
    call.reply.proto = Proto::Two;
    call.reply.status("RESET");
    Ok(())
}

/// `AUTH [username] password`
pub(super) fn auth(call: &mut Call<'_, '_>) -> Answer {
    let has_password = call.host.settings.has_password.load(Ordering::Acquire);
    let (user, password) = match call.words.len() {
        2 if !has_password => {
            return Err("ERR AUTH <password> called without any password configured for the \
                        default user. Are you sure your configuration is correct?"
                .into());
        }
        2 => (&b"default"[..], call.word(1)),
        3 => (call.word(1), call.word(2)),
        _ => return Err(SYNTAX.into()),
    };
    authenticate(call, user, password)?;
    call.reply.ok();
    Ok(())
}

/// There is one user, `default`; without a configured password any password is accepted.
fn authenticate(call: &mut Call<'_, '_>, user: &[u8], password: &[u8]) -> Answer {
    let expected = call.host.settings.password.lock().clone();
    let is_right = expected.is_none_or(|expected| is_same(expected.as_bytes(), password));
    if user != b"default" || !is_right {
        return Err("WRONGPASS invalid username-password pair or user is disabled.".into());
    }
    call.session.is_authenticated = true;
    Ok(())
}

/// Compares in a time that does not reveal where the difference is.
fn is_same(expected: &[u8], given: &[u8]) -> bool {
    let differences = expected
        .iter()
        .zip(given.iter().chain(std::iter::repeat(&0)))
        .fold(0, |differences, (expected, given)| differences | (expected ^ given));
    expected.len() == given.len() && differences == 0
}

/// `HELLO [protover [AUTH username password] [SETNAME clientname]]`
pub(super) fn hello(call: &mut Call<'_, '_>) -> Answer {
    let mut proto = None;
    if let Some(version) = call.words.get(1) {
        proto = Some(match parse_i64(version) {
            Some(2) => Proto::Two,
            Some(3) => Proto::Three,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            None => {
                return Err("ERR Protocol version is not an integer or out of range".into());
            }
        });
    }
    let mut words = call.words.from(2);
    while let Some(word) = words.next() {
        let unknown = || {
            let word = String::from_utf8_lossy(word);
            Failure::from(format!("ERR Syntax error in HELLO option '{word}'"))
        };
        if is(word, "AUTH") && words.len() >= 2 {
            let (user, password) = (words.next(), words.next());
            authenticate(call, user.unwrap_or_default(), password.unwrap_or_default())?;
        } else if is(word, "SETNAME") && words.len() >= 1 {
            client::change_name(call, words.next().unwrap_or_default())?;
        } else {
            return Err(unknown());
        }
    }
    if !call.session.is_authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time"
                .into(),
        );
    }
    if let Some(proto) = proto {
        call.session.begins_anew = proto != call.session.proto;
        call.session.set_proto(proto);
        call.reply.proto = proto;
    }
    let standing = call.host.config.cluster.as_deref().map(ClusterInfo::standing);
    let leads = standing.is_none_or(|it| it == Standing::Leads);
    let role = if leads { "master" } else { "replica" };
    let reply = &mut call.reply;
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.int(i64::from(reply.proto.number()));
    reply.bulk(b"id");
    reply.int(i64::try_from(call.session.info.id).unwrap_or(i64::MAX));
    for (name, value) in [("mode", call.host.mode()), ("role", role)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn passwords_are_compared_in_full() {
        assert!(is_same(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"Secret", b"secret\0"] {
            assert!(!is_same(b"secret", wrong));
        }
        assert!(is_same(b"", b""));
    }
}
