//! The cluster that this server is a node of: `CLUSTER`, `ROLE`.

use super::{Answer, Call, Failure, is};
use crate::{ClusterInfo, Standing};
use std::sync::Arc;

/// Slots of Redis's clusters, of which clients of one compute a key's.
const SLOTS: u16 = 16384;

/// The slot of a key, as in a Redis cluster: of what stands between the first braces, if anything does.
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

/// `CLUSTER subcommand …`: what cluster clients ask (`SLOTS`, `INFO`, `MYID`, `KEYSLOT`), and what the operator wants
/// (`STATUS`, `ADD`, `REMOVE`, `TRANSFER`)
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
        word if is(word, "FORWARDED") && call.words.len() == 2 => {
            call.session.is_forwarded = true;
            call.reply.ok();
            Ok(())
        }
        _ => {
            let words = call.words.from(1).map(|word| String::from_utf8_lossy(word).into_owned());
            let words: Vec<String> = words.collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = cluster.run(&words)?;
            call.reply.verbatim(&text);
            Ok(())
        }
    }
}

/// All slots are the leader's.
fn slots(call: &mut Call<'_, '_>, cluster: &dyn ClusterInfo) {
    let leader = match cluster.standing() {
        Standing::Leads => call.host.addresses.first().copied(),
        Standing::Follows(leader) => Some(leader),
        Standing::Unknown => None,
    };
    let Some(leader) = leader else { return call.reply.array(0) };
    call.reply.array(1);
    call.reply.array(3);
    call.reply.int(0);
    call.reply.int(i64::from(SLOTS) - 1);
    call.reply.array(2);
    call.reply.bulk(leader.ip().to_string().as_bytes());
    call.reply.int(i64::from(leader.port()));
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
