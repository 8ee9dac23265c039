//! Work that a server does for the store that it serves: started by a command, and waited for.

use crate::ask::{Asked, Refusal};
use crate::failure::{Cause, FAILED, Failure};
use crate::progress::Bar;
use coreplane_engine::Vacancy;
use coreplane_server::administration::vacancy_name;
use serde_json::Value;
use std::time::Duration;

/// The interval at which a server is asked for progress.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// An answer in JSON. While the server is still counting its records for it, the command is sent again.
pub(crate) fn told(server: &mut Asked, words: &[&str]) -> Result<Value, Failure> {
    let text = loop {
        match server.text(words) {
            Err(Failure { cause: Cause::Refused(Refusal { code, .. }), .. })
                if code == "TRYAGAIN" =>
            {
                std::thread::sleep(ASKED_EVERY);
            }
            told => break told?,
        }
    };
    serde_json::from_str(&text).map_err(|error| server.failed(&error))
}

/// Starts work on a server by the command `words`, and waits until it is done; its result. Another client may begin
/// other work as soon as it is done: then its result is not known, and that is a failure.
pub(crate) fn work(mut server: Asked, words: &[String]) -> Result<Value, Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let command = words.first().copied().unwrap_or_default();
    let begun = server.text(&words)?;
    let number = begun.strip_prefix("begun ").and_then(|number| number.parse::<u64>().ok());
    let number = number.ok_or_else(|| server.failed(&"it does not number its work"))?;
    let bar = Bar::new("", 0, false);
    loop {
        let status = told(&mut server, &[command, "STATUS"])?;
        let work = &status["work"];
        if work["number"] != number {
            let what = "other work has begun there since, so the outcome is not known";
            return Err(server.failed(&what));
        }
        if work["error"].is_string() {
            return Err(failure_of(&server, work));
        }
        if work["going_on"] == false {
            return Ok(work["outcome"].clone());
        }
        if let (Some(stage), Some(done)) = (work["stage"].as_str(), work["done"].as_u64()) {
            bar.tell(stage, done, work["total"].as_u64().unwrap_or(0));
        }
        std::thread::sleep(ASKED_EVERY);
    }
}

/// Why work has failed, with the exit code of the same failure without a server.
fn failure_of(server: &Asked, work: &Value) -> Failure {
    let code = work["code"].as_u64().and_then(|code| u8::try_from(code).ok());
    let failed = server.failed(&work["error"].as_str().unwrap_or_default());
    let failure = Failure::new(code.unwrap_or(FAILED), failed.message);
    let known = [Vacancy::Fresh, Vacancy::Retire];
    match known.into_iter().find(|it| work["vacancy"] == vacancy_name(*it)) {
        Some(vacancy) => failure.because(Cause::Occupied(vacancy)),
        None => failure,
    }
}
