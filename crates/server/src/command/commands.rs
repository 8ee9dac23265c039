//! The list of the commands.

use super::table::{COMMANDS, Command, find};
use super::{Answer, Call, Failure, SYNTAX, is, specification};
use crate::glob::Pattern;

/// True unless the command only serves to recognise browsers.
pub(super) fn is_listed(command: &Command) -> bool {
    !matches!(command.name, "host:" | "post")
}

fn listed() -> impl Iterator<Item = &'static Command> + Clone {
    COMMANDS.iter().filter(|command| is_listed(command))
}

/// `COMMAND`
pub(super) fn all(call: &mut Call<'_, '_>) -> Answer {
    if call.words.len() > 1 {
        return Err(call.unknown_subcommand());
    }
    answer_infos(call, listed().map(|command| command.name.as_bytes().to_vec()).collect());
    Ok(())
}

/// `COMMAND COUNT`
pub(super) fn count(call: &mut Call<'_, '_>) -> Answer {
    call.reply.count(listed().count());
    Ok(())
}

/// `COMMAND INFO [name ...]`
pub(super) fn info(call: &mut Call<'_, '_>) -> Answer {
    if call.words.len() == 2 {
        answer_infos(call, listed().map(|command| command.name.as_bytes().to_vec()).collect());
    } else {
        answer_infos(call, call.names(2)?.map(<[u8]>::to_ascii_lowercase).collect());
    }
    Ok(())
}

fn answer_infos(call: &mut Call<'_, '_>, names: Vec<Vec<u8>>) {
    call.reply.array(names.len());
    for name in names {
        match specification::find(&name) {
            Some(found) => specification::write(found.info, call.reply.proto, call.reply.out),
            None => call.reply.null(),
        }
    }
}

/// `COMMAND DOCS [name ...]`
pub(super) fn docs(call: &mut Call<'_, '_>) -> Answer {
    let names: Vec<Vec<u8>> = if call.words.len() == 2 {
        listed().map(|command| command.name.as_bytes().to_vec()).collect()
    } else {
        call.names(2)?.map(<[u8]>::to_ascii_lowercase).collect()
    };
    let found: Vec<_> =
        names.iter().filter_map(|name| Some((name, specification::find(name)?))).collect();
    call.reply.map(found.len());
    for (name, specification) in found {
        call.reply.bulk(name);
        specification::write(specification.docs, call.reply.proto, call.reply.out);
    }
    Ok(())
}

/// `COMMAND LIST [FILTERBY MODULE name|ACLCAT category|PATTERN pattern]`
pub(super) fn list(call: &mut Call<'_, '_>) -> Answer {
    let all = listed().flat_map(|command| std::iter::once(command).chain(command.parts));
    let all = all.map(|command| command.name);
    let names: Vec<&str> = match call.words.len() {
        2 => all.collect(),
        5 if is(call.word(2), "FILTERBY") => {
            let (kind, wanted) = (call.word(3), call.word(4));
            if is(kind, "MODULE") {
                Vec::new()
            } else if is(kind, "ACLCAT") {
                all.filter(|name| is_in_category(name, wanted)).collect()
            } else if is(kind, "PATTERN") {
                let wanted = Pattern::new(wanted)?;
                all.filter(|name| wanted.matches(name.as_bytes(), true)).collect()
            } else {
                return Err(SYNTAX.into());
            }
        }
        _ => return Err(SYNTAX.into()),
    };
    call.reply.array(names.len());
    for name in names {
        call.reply.bulk(name.as_bytes());
    }
    Ok(())
}

fn is_in_category(name: &str, category: &[u8]) -> bool {
    let category = category.to_ascii_lowercase();
    let status = [b"+@", category.as_slice(), b"\r\n"].concat();
    specification::find(name.as_bytes()).is_some_and(|specification| {
        // The categories of the command itself come before those of its parts.
        let own = specification.info;
        own.windows(status.len()).any(|window| window == status)
    })
}

/// The command that the words of a `COMMAND GETKEYS` make up, and the places of its keys in it.
fn keys_of(call: &Call<'_, '_>) -> Result<(&'static Command, Vec<usize>), Failure> {
    let index = find(call.word(2)).ok_or("ERR Invalid command specified")?;
    let whole = &COMMANDS[index];
    let command = call.words.get(3).and_then(|part| whole.part(part)).unwrap_or(whole);
    let words = call.words.len() - 2;
    if !command.accepts(words) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let keys = command.keys;
    let Ok(first @ 1..) = usize::try_from(keys.first) else {
        return Err("ERR The command has no key arguments".into());
    };
    let last = match usize::try_from(keys.last) {
        Ok(last) => last,
        Err(_) => words.saturating_sub(usize::from(keys.last.unsigned_abs())),
    };
    let step = usize::from(keys.step.unsigned_abs()).max(1);
    Ok((command, (first..=last).step_by(step).collect()))
}

/// `COMMAND GETKEYS command [arg ...]`
pub(super) fn get_keys(call: &mut Call<'_, '_>) -> Answer {
    let (_, places) = keys_of(call)?;
    call.reply.array(places.len());
    for place in places {
        call.reply.bulk(call.words.at(place + 2));
    }
    Ok(())
}

/// `COMMAND GETKEYSANDFLAGS command [arg ...]`
pub(super) fn get_keys_and_flags(call: &mut Call<'_, '_>) -> Answer {
    let (command, places) = keys_of(call)?;
    let keys = specification::key_flags(command.name);
    // `SET` is recorded with the flags of `SET … GET`; without `GET` it does not read the value that it overwrites.
    let overwrites = command.name == "set" && !call.words.from(5).any(|word| is(word, "GET"));
    call.reply.array(places.len());
    for place in places {
        // The last of the key sets that begin at this place or before it.
        let of_place = keys.iter().rfind(|keys| keys.first <= place);
        let flags = of_place.map(|keys| keys.flags.as_slice()).unwrap_or_default();
        let flags = flags.iter().filter(|flag| **flag != b"variable_flags");
        let flags: Vec<&[u8]> = match overwrites {
            true => vec![b"OW", b"update"],
            false => flags.copied().collect(),
        };
        call.reply.array(2);
        call.reply.bulk(call.words.at(place + 2));
        call.reply.array(flags.len());
        for flag in flags {
            call.reply.status(&String::from_utf8_lossy(flag));
        }
    }
    Ok(())
}

/// `COMMAND HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "COMMAND",
        &[
            "(no subcommand)",
            "    Return details about all Redis commands.",
            "COUNT",
            "    Return the total number of commands in this Redis server.",
            "LIST",
            "    Return a list of all commands in this Redis server.",
            "INFO [<command-name> ...]",
            "    Return details about multiple Redis commands.",
            "    If no command names are given, documentation details for all",
            "    commands are returned.",
            "DOCS [<command-name> ...]",
            "    Return documentation details about multiple Redis commands.",
            "    If no command names are given, documentation details for all",
            "    commands are returned.",
            "GETKEYS <full-command>",
            "    Return the keys from a full Redis command.",
            "GETKEYSANDFLAGS <full-command>",
            "    Return the keys and the access flags from a full Redis command.",
        ],
    );
    Ok(())
}
