//! Parameters.

use super::{Answer, Call, Failure, SYNTAX};
use crate::glob::Pattern;
use crate::parameters::{PARAMETERS, Parameter};

/// `CONFIG GET parameter [parameter ...]`
pub(super) fn get(call: &mut Call<'_, '_>) -> Answer {
    // A parameter that is requested by name is answered under the name that the client wrote.
    let mut wanted: Vec<(&Parameter, &[u8])> = Vec::new();
    for pattern in call.names(2)? {
        let is_pattern = pattern.iter().any(|byte| b"[*?".contains(byte));
        let parsed = Pattern::new(pattern)?;
        for parameter in PARAMETERS {
            let name = parameter.name.as_bytes();
            let is_new = wanted.iter().all(|(other, _)| other.name != parameter.name);
            if is_pattern && is_new && parsed.matches(name, true) {
                wanted.push((parameter, name));
            } else if is_new && name.eq_ignore_ascii_case(pattern) {
                wanted.push((parameter, pattern));
            }
        }
    }
    call.reply.map(wanted.len());
    for (parameter, name) in wanted {
        call.reply.bulk(name);
        call.reply.bulk(parameter.get(call.host).as_bytes());
    }
    Ok(())
}

/// `CONFIG SET parameter value [parameter value ...]`, all or none
pub(super) fn set(call: &mut Call<'_, '_>) -> Answer {
    if !call.words.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    let mut changes: Vec<(&Parameter, String)> = Vec::new();
    let mut words = call.words.from(2);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let parameter = PARAMETERS
            .iter()
            .find(|parameter| name.eq_ignore_ascii_case(parameter.name.as_bytes()))
            .ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                let text = "ERR Unknown option or number of arguments for CONFIG SET";
                Failure::from(format!("{text} - '{name}'"))
            })?;
        if parameter.is_immutable() {
            return Err(refused(parameter, "can't set immutable config"));
        }
        if changes.iter().any(|(other, _)| other.name == parameter.name) {
            return Err(refused(parameter, "duplicate parameter"));
        }
        let value = std::str::from_utf8(value);
        let value = value.map_err(|_| refused(parameter, "argument must be text in UTF-8"))?;
        changes.push((parameter, value.to_owned()));
    }
    let mut before: Vec<(&Parameter, String)> = Vec::new();
    for (parameter, value) in changes {
        before.push((parameter, parameter.get(call.host)));
        if let Err(complaint) = parameter.set(call.host, &value) {
            for (parameter, value) in before.iter().rev() {
                // The previous value was valid a moment ago.
                parameter.set(call.host, value).ok();
            }
            return Err(refused(parameter, &complaint));
        }
    }
    call.host.check_memory();
    call.reply.ok();
    Ok(())
}

fn refused(parameter: &Parameter, complaint: &str) -> Failure {
    let name = parameter.name;
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {complaint}").into()
}

/// `CONFIG RESETSTAT`
pub(super) fn reset_statistics(call: &mut Call<'_, '_>) -> Answer {
    call.host.reset_statistics();
    call.reply.ok();
    Ok(())
}

/// `CONFIG REWRITE`
pub(super) fn rewrite(_: &mut Call<'_, '_>) -> Answer {
    Err("ERR The server is running without a config file".into())
}

/// `CONFIG HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "CONFIG",
        &[
            "GET <pattern>",
            "    Return parameters matching the glob-like <pattern> and their values.",
            "SET <directive> <value>",
            "    Set the configuration <directive> to <value>.",
            "RESETSTAT",
            "    Reset statistics reported by the INFO command.",
            "REWRITE",
            "    Rewrite the configuration file.",
        ],
    );
    Ok(())
}
