//! The cluster that this server is a node of: `CLUSTER`, `READONLY`, `READWRITE`, `ROLE`.

use super::{Answer, Call, Failure, NOT_INTEGER, SYNTAX, is};
use crate::feed::Feed;
use crate::resp::reply::Proto;
use crate::{ClusterInfo, MemberInfo, SnapshotPage, Standing};
use coreplane_engine::UnixMillis;
use std::net::SocketAddr;
use std::sync::Arc;

/// The number of slots of a Redis cluster; its clients compute the slot of each key.
const SLOTS: u16 = 16384;

/// The slot of a key, as in a Redis cluster: of the text between the first braces, if there is any.
pub(crate) fn key_slot(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

fn cluster_of(call: &Call<'_, '_>) -> Result<Arc<dyn ClusterInfo>, Failure> {
    let off = "ERR This instance has cluster support disabled";
    call.host.config.cluster.clone().ok_or_else(|| off.into())
}

/// `CLUSTER subcommand …`: requests of cluster clients (`SLOTS`, `SHARDS`, `INFO`, `MYID`, `KEYSLOT`), of clients
/// that watch changes (`WATCH`, `UNWATCH`, `SNAPSHOT`), and of the operator (`STATUS`, `ADD`, `REMOVE`, `TRANSFER`)
pub(super) fn cluster(call: &mut Call<'_, '_>) -> Answer {
    let cluster = cluster_of(call)?;
    match call.word(1) {
        word if is(word, "KEYSLOT") && call.words.len() == 3 => {
            call.reply.int(i64::from(key_slot(call.word(2))));
            Ok(())
        }
        word if is(word, "SLOTS") && call.words.len() == 2 => {
            slots(call, &*cluster);
            Ok(())
        }
        word if is(word, "SHARDS") && call.words.len() == 2 => {
            shards(call, &*cluster);
            Ok(())
        }
        word if is(word, "WATCH") => watch(call, &*cluster),
        word if is(word, "UNWATCH") && call.words.len() == 2 => {
            call.session.feed = None;
            call.reply.ok();
            Ok(())
        }
        word if is(word, "SNAPSHOT") => snapshot(call, &*cluster),
        word if is(word, "FORWARDED") && call.words.len() == 2 => {
            call.session.is_forwarded = true;
            call.reply.ok();
            Ok(())
        }
        _ => {
            let text = cluster.run(&call.texts()?)?;
            call.reply.verbatim(&text);
            Ok(())
        }
    }
}

/// `CLUSTER WATCH index [PREFIX prefix]`: from now on the server pushes to the client the changes of keys with this
/// prefix that this node has applied behind that index, and those that it will apply. The answer is the index applied
/// by now.
fn watch(call: &mut Call<'_, '_>, cluster: &dyn ClusterInfo) -> Answer {
    let prefix = match call.words.len() {
        3 => &[][..],
        5 if is(call.word(3), "PREFIX") => call.word(4),
        _ => return Err(SYNTAX.into()),
    };
    if call.session.is_forwarded {
        return Err("ERR a node passes no pushes on".into());
    }
    if call.session.proto != Proto::Three {
        return Err("ERR changes are pushed, which takes RESP3: send HELLO 3 before".into());
    }
    let index = u64::try_from(call.integer(2)?).map_err(|_| NOT_INTEGER)?;
    // If the first of these entries are gone, the client learns it at once.
    cluster.changes_since(index, 1)?;
    call.session.feed = Some(Feed::new(index, prefix));
    call.reply.int(i64::try_from(cluster.applied()).unwrap_or(i64::MAX));
    Ok(())
}

/// `CLUSTER SNAPSHOT`: the number of a new pin, and its index. `CLUSTER SNAPSHOT number start`: a page of it, as the
/// first key of the next page, and the key, value and expiry in milliseconds of each record.
/// `CLUSTER SNAPSHOT number`: releases it.
fn snapshot(call: &mut Call<'_, '_>, cluster: &dyn ClusterInfo) -> Answer {
    if call.words.len() == 2 {
        let (pin, index) = cluster.pin()?;
        // A majority confirms afterwards that this node still led when it pinned the state.
        call.store.rest_on_all();
        call.reply.array(2);
        for number in [pin, index] {
            call.reply.int(i64::try_from(number).unwrap_or(i64::MAX));
        }
        return Ok(());
    }
    let pin = std::str::from_utf8(call.word(2)).ok().and_then(|text| text.parse().ok());
    let pin = pin.ok_or("ERR value is not an integer or out of range")?;
    if call.words.len() == 3 {
        cluster.unpin(pin);
        call.reply.ok();
        return Ok(());
    }
    let SnapshotPage { records, next } = cluster.page(pin, call.word(3))?;
    let reply = &mut call.reply;
    reply.array(1 + 3 * records.len());
    match next {
        Some(key) => reply.bulk(&key),
        None => reply.null(),
    }
    for (key, value, expires_at) in records {
        reply.bulk(&key);
        reply.bulk(&value);
        match expires_at {
            Some(UnixMillis(at)) => reply.int(i64::try_from(at).unwrap_or(i64::MAX)),
            None => reply.null(),
        }
    }
    Ok(())
}

/// The members, if the leader is known, with their addresses for clients.
fn members(call: &Call<'_, '_>, cluster: &dyn ClusterInfo) -> Vec<(MemberInfo, SocketAddr)> {
    let own = call.host.addresses.first().copied();
    let members = cluster.members().into_iter();
    let members: Vec<_> = members.filter_map(|it| Some((it, it.address.or(own)?))).collect();
    let is_led = members.first().is_some_and(|(it, _)| it.leads);
    if is_led { members } else { Vec::new() }
}

/// All slots belong to the leader; the other members are its replicas.
fn slots(call: &mut Call<'_, '_>, cluster: &dyn ClusterInfo) {
    let members = members(call, cluster);
    if members.is_empty() {
        return call.reply.array(0);
    }
    call.reply.array(1);
    call.reply.array(2 + members.len());
    call.reply.int(0);
    call.reply.int(i64::from(SLOTS) - 1);
    for (member, address) in members {
        call.reply.array(3);
        call.reply.bulk(address.ip().to_string().as_bytes());
        call.reply.int(i64::from(address.port()));
        call.reply.bulk(member.node.to_string().as_bytes());
    }
}

/// One shard has all slots, and all members are nodes of it.
fn shards(call: &mut Call<'_, '_>, cluster: &dyn ClusterInfo) {
    let members = members(call, cluster);
    if members.is_empty() {
        return call.reply.array(0);
    }
    let reply = &mut call.reply;
    reply.array(1);
    reply.map(2);
    reply.bulk(b"slots");
    reply.array(2);
    reply.int(0);
    reply.int(i64::from(SLOTS) - 1);
    reply.bulk(b"nodes");
    reply.array(members.len());
    for (member, address) in members {
        let ip = address.ip().to_string();
        reply.map(7);
        for (name, value) in [
            ("id", member.node.to_string()),
            ("ip", ip.clone()),
            ("endpoint", ip),
            ("role", if member.leads { "master" } else { "replica" }.to_owned()),
            ("health", if member.is_online { "online" } else { "failed" }.to_owned()),
        ] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"port");
        reply.int(i64::from(address.port()));
        reply.bulk(b"replication-offset");
        reply.int(i64::try_from(member.index).unwrap_or(i64::MAX));
    }
}

/// `READONLY`: from now on a follower shows this client its own state, if that is not older than the server allows.
pub(super) fn read_only(call: &mut Call<'_, '_>) -> Answer {
    cluster_of(call)?;
    call.session.is_read_only = true;
    call.reply.ok();
    Ok(())
}

/// `READWRITE`: from now on the leader answers again.
pub(super) fn read_write(call: &mut Call<'_, '_>) -> Answer {
    cluster_of(call)?;
    call.session.is_read_only = false;
    call.reply.ok();
    Ok(())
}

/// `ROLE`
pub(super) fn role(call: &mut Call<'_, '_>) -> Answer {
    let cluster = call.host.config.cluster.clone();
    let applied = |cluster: &dyn ClusterInfo| i64::try_from(cluster.applied()).unwrap_or(i64::MAX);
    let Some(cluster) = cluster else {
        call.reply.array(3);
        call.reply.bulk(b"master");
        call.reply.int(0);
        call.reply.array(0);
        return Ok(());
    };
    if cluster.standing() == Standing::Leads {
        let followers = cluster.followers();
        call.reply.array(3);
        call.reply.bulk(b"master");
        call.reply.int(applied(&*cluster));
        call.reply.array(followers.len());
        for (address, index) in followers {
            call.reply.array(3);
            call.reply.bulk(address.ip().to_string().as_bytes());
            call.reply.bulk(address.port().to_string().as_bytes());
            call.reply.bulk(index.to_string().as_bytes());
        }
        return Ok(());
    }
    let (host, port, state) = match cluster.standing() {
        Standing::Follows(leader) => (leader.ip().to_string(), leader.port(), "connected"),
        _ => (String::new(), 0, "connect"),
    };
    call.reply.array(5);
    call.reply.bulk(b"slave");
    call.reply.bulk(host.as_bytes());
    call.reply.int(i64::from(port));
    call.reply.bulk(state.as_bytes());
    call.reply.int(applied(&*cluster));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(key_slot(b"foo"), 12182);
        assert_eq!(key_slot(b"{user1000}.following"), key_slot(b"{user1000}.followers"));
        assert_ne!(key_slot(b"foo{}{bar}"), key_slot(b"bar"));
        assert_eq!(key_slot(b"foo{{bar}}"), key_slot(b"{bar"));
    }
}
