//! Mistakes in the answers of the server.

use super::{Mutant, Suite};

const PACKAGE: &str = "coreplane-server";
const LISTING: Suite = Suite::of(PACKAGE, Suite::UNIT, &["the_last_step_waits"]);
const CLEAR: Suite = Suite::of(PACKAGE, "commands", &["a_transaction_that_clears_what"]);
const TURNS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["what_nobody_has_asked_for"]);
const PLACE: Suite = Suite::of(PACKAGE, Suite::UNIT, &["parts_without_bytes"]);
const MOMENT: Suite = Suite::of(PACKAGE, "commands", &["many_keys_are_read_as_of_one_moment"]);
const HELD: Suite = Suite::of(PACKAGE, "commands", &["waits_to_be_alone"]);
const KILL: Suite =
    Suite::of(PACKAGE, "commands", &["a_held_command_ends_with_the_kill_of_its_client"]);
const SENT: Suite = Suite::of(PACKAGE, Suite::UNIT, &["nothing_is_sent_behind_a"]);
const UNREACHED: Suite =
    Suite::of(PACKAGE, "commands", &["a_pause_holds_a_command_that_has_not_reached_a_leader"]);
const ACCEPT: Suite =
    Suite::of(PACKAGE, Suite::UNIT, &["a_connection_gets_no_event_of_the_one_before_it"]);
const MONITOR: Suite = Suite::of(PACKAGE, "commands", &["line_of_a_monitor"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("server.keys.rest", "KEYS is answered before what it shows is durable", LISTING),
    Mutant::new("server.clear.rest", "a FLUSHALL in EXEC waits for nothing it did not meet", CLEAR),
    Mutant::new("server.turn.unasked", "nobody asks for the sync of the first of two turns", TURNS),
    Mutant::new("server.output.place", "a later answer goes out before its write", PLACE),
    Mutant::new("server.marks.mark", "an MGET in slices does not see what is written", MOMENT),
    Mutant::new("server.isolation.again", "a write that waited ignores a new pause", HELD),
    Mutant::new("server.kill.next", "the next command of a killed client is run", KILL),
    Mutant::new("server.upstream.alone", "a follower sends while another loop is alone", SENT),
    Mutant::new("server.upstream.paused", "a follower sends what a pause holds", UNREACHED),
    Mutant::new("server.accept.early", "a stale event is applied to a new client", ACCEPT),
    Mutant::new("server.monitor.within", "a line of MONITOR within an answer", MONITOR).hangs(),
];
