//! Clients that disconnect others.

use super::client::is_normal_type;
use super::{Answer, Call, Failure, SYNTAX, is};
use crate::clients::ClientInfo;
use crate::host::Message;
use crate::resp::number::parse_i64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The clients to kill.
#[derive(Debug)]
struct Wanted<'a> {
    id: Option<i64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    is_normal: bool,
    skips_self: bool,
}

impl Wanted<'_> {
    fn matches(&self, client: &ClientInfo, own_id: u64) -> bool {
        let id = i64::try_from(client.id).unwrap_or(i64::MAX);
        self.is_normal
            && self.id.is_none_or(|wanted| wanted == id)
            && self.address.is_none_or(|wanted| wanted == client.address.as_bytes())
            && self.local_address.is_none_or(|wanted| wanted == client.local_address.as_bytes())
            && !(self.skips_self && client.id == own_id)
    }
}

/// `CLIENT KILL addr`, `CLIENT KILL [ID id] [ADDR a] [LADDR a] [TYPE t] [USER u] [SKIPME y/n]`, alone among the event
/// loops: when it is answered no command of the others runs, and none will, though their loops have not closed their
/// sockets yet. On a follower nothing more is sent to the leader for them, but it may still run what was sent before.
pub(super) fn kill(call: &mut Call<'_, '_>) -> Answer {
    let is_old_form = call.words.len() == 3;
    let wanted = if is_old_form {
        Wanted {
            id: None,
            address: Some(call.word(2)),
            local_address: None,
            is_normal: true,
            skips_self: false,
        }
    } else {
        wanted(call)?
    };
    let own_id = call.session.info.id;
    let mut victims: Vec<Arc<ClientInfo>> = call.host.clients.all();
    victims.retain(|client| wanted.matches(client, own_id));
    for victim in &victims {
        victim.is_killed.store(true, Ordering::Relaxed);
        if victim.id == own_id {
            call.session.is_closing = true;
            continue;
        }
        call.host.clients.remove(victim.id);
        if let Some(port) = call.host.ports.get(victim.member) {
            port.send(Message::Kill(victim.key, victim.id));
        }
    }
    if !is_old_form {
        call.reply.count(victims.len());
    } else if victims.is_empty() {
        return Err("ERR No such client".into());
    } else {
        call.reply.ok();
    }
    Ok(())
}

fn wanted<'a>(call: &Call<'a, '_>) -> Result<Wanted<'a>, Failure> {
    let mut wanted =
        Wanted { id: None, address: None, local_address: None, is_normal: true, skips_self: true };
    let mut words = call.words.from(2);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(SYNTAX)?;
        if is(word, "ID") {
            let id = parse_i64(value).filter(|id| *id > 0);
            wanted.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
        } else if is(word, "TYPE") {
            wanted.is_normal = is_normal_type(value)?;
        } else if is(word, "ADDR") {
            wanted.address = Some(value);
        } else if is(word, "LADDR") {
            wanted.local_address = Some(value);
        } else if is(word, "USER") {
            if value != b"default" {
                let value = String::from_utf8_lossy(value);
                return Err(format!("ERR No such user '{value}'").into());
            }
        } else if is(word, "SKIPME") {
            wanted.skips_self = match value {
                _ if is(value, "YES") => true,
                _ if is(value, "NO") => false,
                _ => return Err(SYNTAX.into()),
            };
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(wanted)
}
