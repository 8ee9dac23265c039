//! The table of commands, and a hash table for their names.

use super::{
    Answer, Call, client, client_kill, cluster, commands, config, connection, counter, deletion,
    durability, expire, function, info, key, keyspace, many, matrix, memory, monitor, object, once,
    pause, range, scan, server, set, slow_log, store, string, transaction,
};

/// Where the keys of a command are: first, last (negative: from the end) and step; 0: it has none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys {
    pub first: i8,
    pub last: i8,
    pub step: i8,
}

/// One command, or one part of a command.
#[derive(Debug)]
pub(crate) struct Command {
    /// Its name in lower case; `client|list` for a part.
    pub name: &'static str,
    /// The number of words; if negative, the least number.
    pub arity: i8,
    /// See the constants below.
    pub flags: u16,
    /// Where its keys are.
    pub keys: Keys,
    /// Runs it.
    pub run: fn(&mut Call<'_, '_>) -> Answer,
    /// Its parts.
    pub parts: &'static [Command],
}

impl Command {
    /// True if a command of `words` words is complete.
    pub(crate) fn accepts(&self, words: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= least } else { words == least }
    }

    /// True if it has this flag.
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The part of this name.
    pub(crate) fn part(&self, name: &[u8]) -> Option<&'static Command> {
        self.parts.iter().find(|part| {
            let own = part.name.split('|').nth(1).unwrap_or_default();
            name.eq_ignore_ascii_case(own.as_bytes())
        })
    }
}

/// May be used before the password is given.
pub(crate) const NO_AUTH: u16 = 1;
/// Refused inside a transaction.
pub(crate) const NO_MULTI: u16 = 2;
/// Runs at once inside a transaction instead of being queued.
pub(crate) const AT_ONCE: u16 = 4;
/// Runs alone among the event loops.
pub(crate) const ALONE: u16 = 8;
/// Runs alone among the event loops if it has more than one key.
pub(crate) const ALONE_IF_MANY: u16 = 16;
/// Writes.
pub(crate) const WRITE: u16 = 32;
/// Needs the number of records: its connection waits until they are counted.
pub(crate) const COUNTED: u16 = 64;

/// Needs the records, though it names no key: in a cluster the leader runs it.
pub(crate) const RECORDS: u16 = 128;

const NONE: Keys = keys(0, 0, 0);
const ONE: Keys = keys(1, 1, 1);
const ALL: Keys = keys(1, -1, 1);
const PAIRS: Keys = keys(1, -1, 2);
const TWO: Keys = keys(1, 2, 1);

const fn keys(first: i8, last: i8, step: i8) -> Keys {
    Keys { first, last, step }
}

const fn row(
    name: &'static str,
    arity: i8,
    flags: u16,
    keys: Keys,
    run: fn(&mut Call<'_, '_>) -> Answer,
) -> Command {
    Command { name, arity, flags, keys, run, parts: &[] }
}

const fn whole(
    name: &'static str,
    arity: i8,
    run: fn(&mut Call<'_, '_>) -> Answer,
    parts: &'static [Command],
) -> Command {
    Command { parts, ..row(name, arity, 0, NONE, run) }
}

const CLIENT: &[Command] = &[
    row("client|getname", 2, 0, NONE, client::get_name),
    row("client|getredir", 2, 0, NONE, client::get_redirection),
    row("client|help", 2, 0, NONE, client::help),
    row("client|id", 2, 0, NONE, client::id),
    row("client|info", 2, 0, NONE, client::info),
    row("client|kill", -3, ALONE, NONE, client_kill::kill),
    row("client|list", -2, 0, NONE, client::list),
    row("client|no-evict", 3, 0, NONE, client::no_evict),
    row("client|no-touch", 3, 0, NONE, client::no_touch),
    row("client|pause", -3, ALONE, NONE, pause::pause),
    row("client|reply", 3, 0, NONE, client::reply),
    row("client|setinfo", 4, 0, NONE, client::set_info),
    row("client|setname", 3, 0, NONE, client::set_name),
    row("client|unpause", 2, 0, NONE, pause::unpause),
];

const COMMAND: &[Command] = &[
    row("command|count", 2, 0, NONE, commands::count),
    row("command|docs", -2, 0, NONE, commands::docs),
    row("command|getkeys", -4, 0, NONE, commands::get_keys),
    row("command|getkeysandflags", -4, 0, NONE, commands::get_keys_and_flags),
    row("command|help", 2, 0, NONE, commands::help),
    row("command|info", -2, 0, NONE, commands::info),
    row("command|list", -2, 0, NONE, commands::list),
];

const CONFIG: &[Command] = &[
    row("config|get", -3, 0, NONE, config::get),
    row("config|help", 2, 0, NONE, config::help),
    row("config|resetstat", 2, 0, NONE, config::reset_statistics),
    row("config|rewrite", 2, 0, NONE, config::rewrite),
    row("config|set", -4, 0, NONE, config::set),
];

const FUNCTION: &[Command] = &[
    row("function|flush", -2, 0, NONE, function::flush),
    row("function|help", 2, 0, NONE, function::help),
    row("function|list", -2, 0, NONE, function::list),
];

const MEMORY: &[Command] = &[
    row("memory|help", 2, 0, NONE, memory::help),
    row("memory|usage", -3, 0, OBJECT_KEY, memory::usage),
];

const SLOWLOG: &[Command] = &[
    row("slowlog|get", -2, 0, NONE, slow_log::get),
    row("slowlog|help", 2, 0, NONE, slow_log::help),
    row("slowlog|len", 2, 0, NONE, slow_log::len),
    row("slowlog|reset", 2, 0, NONE, slow_log::reset),
];

const OBJECT_KEY: Keys = keys(2, 2, 1);
const OBJECT: &[Command] = &[
    row("object|encoding", 3, 0, OBJECT_KEY, object::encoding),
    row("object|freq", 3, 0, OBJECT_KEY, object::frequency),
    row("object|help", 2, 0, NONE, object::help),
    row("object|idletime", 3, 0, OBJECT_KEY, object::idle_time),
    row("object|refcount", 3, 0, OBJECT_KEY, object::reference_count),
];

const ROWS: [Command; 84] = [
    row("append", 3, WRITE, ONE, string::append),
    row("auth", -2, NO_AUTH, NONE, connection::auth),
    row("bgrewriteaof", 1, 0, NONE, durability::rewrite_log),
    row("bgsave", -1, 0, NONE, durability::background_save),
    whole("client", -2, part_missing, CLIENT),
    row("cluster", -2, NO_MULTI, NONE, cluster::cluster),
    whole("command", -1, commands::all, COMMAND),
    whole("config", -2, part_missing, CONFIG),
    row("copy", -3, WRITE | ALONE, TWO, key::copy),
    row("dbsize", 1, COUNTED, NONE, keyspace::count),
    row("debug", -2, ALONE, NONE, server::debug),
    row("decr", 2, WRITE, ONE, counter::decrement),
    row("decrby", 3, WRITE, ONE, counter::decrement_by),
    row("del", -2, WRITE | ALONE_IF_MANY, ALL, deletion::delete),
    row("discard", 1, AT_ONCE | RECORDS, NONE, transaction::discard),
    row("echo", 2, 0, NONE, connection::echo),
    row("exec", 1, AT_ONCE | ALONE | RECORDS, NONE, transaction::exec),
    row("exists", -2, 0, ALL, key::exists),
    row("expire", -3, WRITE, ONE, expire::in_seconds),
    row("expireat", -3, WRITE, ONE, expire::at_second),
    row("expiretime", 2, 0, ONE, expire::when_second),
    row("flushall", -1, WRITE | ALONE, NONE, keyspace::flush),
    row("flushdb", -1, WRITE | ALONE, NONE, keyspace::flush),
    whole("function", -2, part_missing, FUNCTION),
    row("get", 2, 0, ONE, string::get),
    row("getdel", 2, WRITE, ONE, string::get_delete),
    row("getex", -2, WRITE, ONE, set::get_expire),
    row("getrange", 4, 0, ONE, string::get_range),
    row("getset", 3, WRITE, ONE, set::get_set),
    row("hello", -1, NO_AUTH, NONE, connection::hello),
    row("host:", -1, NO_AUTH | AT_ONCE, NONE, connection::not_http),
    row("incr", 2, WRITE, ONE, counter::increment),
    row("incrby", 3, WRITE, ONE, counter::increment_by),
    row("incrbyfloat", 3, WRITE, ONE, counter::increment_by_float),
    row("info", -1, 0, NONE, info::info),
    row("keys", 2, RECORDS, NONE, scan::keys),
    row("lastsave", 1, 0, NONE, durability::last_save),
    row("matrix", -2, NO_MULTI, NONE, matrix::matrix),
    whole("memory", -2, part_missing, MEMORY),
    row("mget", -2, 0, ALL, many::get),
    row("monitor", 1, NO_MULTI, NONE, monitor::monitor),
    row("mset", -3, WRITE, PAIRS, many::set),
    row("msetnx", -3, WRITE | ALONE, PAIRS, many::set_if_absent),
    row("multi", 1, AT_ONCE | RECORDS, NONE, transaction::multi),
    whole("object", -2, part_missing, OBJECT),
    row("once", -4, WRITE | ALONE | NO_MULTI, NONE, once::once),
    row("persist", 2, WRITE, ONE, expire::persist),
    row("pexpire", -3, WRITE, ONE, expire::in_millis),
    row("pexpireat", -3, WRITE, ONE, expire::at_millis),
    row("pexpiretime", 2, 0, ONE, expire::when_millis),
    row("ping", -1, 0, NONE, connection::ping),
    row("post", -1, NO_AUTH | AT_ONCE, NONE, connection::not_http),
    row("psetex", 4, WRITE, ONE, set::set_millis),
    row("pttl", 2, 0, ONE, expire::left_millis),
    row("quit", -1, NO_AUTH | AT_ONCE, NONE, connection::quit),
    row("randomkey", 1, RECORDS, NONE, scan::random_key),
    row("range", -3, NO_MULTI | RECORDS, NONE, range::range),
    row("readonly", 1, NO_MULTI, NONE, cluster::read_only),
    row("readwrite", 1, NO_MULTI, NONE, cluster::read_write),
    row("rename", 3, WRITE | ALONE, TWO, key::rename),
    row("renamenx", 3, WRITE | ALONE, TWO, key::rename_if_absent),
    row("reset", 1, NO_AUTH | AT_ONCE, NONE, connection::reset),
    row("role", 1, 0, NONE, cluster::role),
    row("save", 1, NO_MULTI, NONE, durability::save),
    row("scan", -2, RECORDS, NONE, scan::scan),
    row("select", 2, 0, NONE, connection::select),
    row("set", -3, WRITE, ONE, set::set),
    row("setex", 4, WRITE, ONE, set::set_seconds),
    row("setnx", 3, WRITE, ONE, set::set_if_absent),
    row("setrange", 4, WRITE, ONE, string::set_range),
    row("shutdown", -1, NO_MULTI, NONE, server::shutdown),
    whole("slowlog", -2, part_missing, SLOWLOG),
    row("store", -2, NO_MULTI, NONE, store::store),
    row("strlen", 2, 0, ONE, string::length),
    row("substr", 4, 0, ONE, string::get_range),
    row("time", 1, 0, NONE, server::time),
    row("touch", -2, 0, ALL, key::exists),
    row("ttl", 2, 0, ONE, expire::left_seconds),
    row("type", 2, 0, ONE, key::kind),
    row("unlink", -2, WRITE | ALONE_IF_MANY, ALL, deletion::delete),
    row("unwatch", 1, RECORDS, NONE, transaction::unwatch),
    row("wait", 3, 0, NONE, durability::wait),
    row("waitaof", 4, 0, NONE, durability::wait_local),
    row("watch", -2, AT_ONCE, ALL, transaction::watch),
];

/// All commands.
pub(crate) static COMMANDS: [Command; ROWS.len()] = ROWS;

/// A container without one of its parts.
fn part_missing(call: &mut Call<'_, '_>) -> Answer {
    Err(call.unknown_subcommand())
}

/// The number of commands, counting each part of one.
pub(crate) const NUMBERS: usize = numbers_before(ROWS.len());

/// The number of each command of the table; those of its parts follow.
static NUMBER_OF: [usize; ROWS.len()] = {
    let mut numbers = [0; ROWS.len()];
    let mut index = 0;
    while index < numbers.len() {
        numbers[index] = numbers_before(index);
        index += 1;
    }
    numbers
};

const fn numbers_before(end: usize) -> usize {
    let (mut count, mut index) = (0, 0);
    while index < end {
        count += 1 + ROWS[index].parts.len();
        index += 1;
    }
    count
}

/// A number that identifies a command of the table, or a part of it.
pub(crate) fn number(index: usize, command: &'static Command) -> usize {
    let parts = COMMANDS[index].parts;
    let part = parts.iter().position(|part| std::ptr::eq(part, command));
    NUMBER_OF[index] + part.map_or(0, |part| part + 1)
}

/// The same, for a command whose index is not known.
pub(crate) fn number_of(command: &'static Command) -> Option<usize> {
    let whole = command.name.split('|').next().unwrap_or_default();
    find(whole.as_bytes()).map(|index| number(index, command))
}

/// Every command and every part of one, in the order of their numbers.
pub(crate) fn all() -> impl Iterator<Item = &'static Command> + Clone {
    COMMANDS.iter().flat_map(|command| std::iter::once(command).chain(command.parts))
}

/// The name of the command with this number; none before the first.
pub(crate) fn name_of(number: usize) -> Option<&'static str> {
    let index = NUMBER_OF.partition_point(|first| *first <= number).checked_sub(1)?;
    let command = COMMANDS.get(index)?;
    match number - NUMBER_OF[index] {
        0 => Some(command.name),
        part => command.parts.get(part - 1).map(|part| part.name),
    }
}

/// Twice as many places as commands, and a power of two.
const PLACES: usize = 256;
const EMPTY: u8 = u8::MAX;
static BY_HASH: [u8; PLACES] = places();

/// Bytes that differ by 0x20 alone have the same hash; the comparison after the look-up is exact.
const fn hash(name: &[u8]) -> usize {
    let mut hash: u32 = 0x811c_9dc5 ^ name.len() as u32;
    let mut index = 0;
    while index < name.len() {
        hash = (hash ^ (name[index] | 0x20) as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    (hash ^ hash >> 15) as usize % PLACES
}

const fn places() -> [u8; PLACES] {
    let mut places = [EMPTY; PLACES];
    let mut index = 0;
    while index < ROWS.len() {
        let mut place = hash(ROWS[index].name.as_bytes());
        while places[place] != EMPTY {
            place = (place + 1) % PLACES;
        }
        places[place] = index as u8;
        index += 1;
    }
    places
}

/// The longest name of a command.
const NAME_LEN_MAX: usize = 16;

/// The index of the command of this name.
pub(crate) fn find(name: &[u8]) -> Option<usize> {
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let mut place = hash(name);
    loop {
        let index = BY_HASH[place];
        let command = COMMANDS.get(usize::from(index))?;
        if command.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(usize::from(index));
        }
        place = (place + 1) % PLACES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for (index, command) in COMMANDS.iter().enumerate() {
            assert_eq!(find(command.name.as_bytes()), Some(index));
            assert_eq!(find(command.name.to_ascii_uppercase().as_bytes()), Some(index));
            assert!(command.name.len() <= NAME_LEN_MAX);
        }
        for absent in [&b""[..], b"ge", b"gett", b"HOST\x1a", b"\xff", b"setset", &[b'a'; 100]] {
            assert_eq!(find(absent), None);
        }
    }

    #[test]
    fn every_number_has_its_name() {
        assert_eq!(all().count(), NUMBERS);
        for (number, command) in all().enumerate() {
            assert_eq!(number_of(command), Some(number));
            assert_eq!(name_of(number), Some(command.name));
        }
        assert_eq!((name_of(NUMBERS), name_of(usize::MAX)), (None, None));
    }

    #[test]
    fn parts_carry_the_name_of_their_whole() {
        for command in &COMMANDS {
            for part in command.parts {
                assert_eq!(part.name.split('|').next(), Some(command.name));
                assert!(part.accepts(usize::from(part.arity.unsigned_abs())));
            }
        }
    }
}
