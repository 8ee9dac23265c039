//! Matrices.

use crate::arguments::{Matrix, Pool};
use crate::failure::{Failure, Outcome, USAGE};
use crate::json;
use coreplane::Standing;
use serde_json::json;
use std::io::{self, Write};

pub(crate) fn run(matrix: &Matrix) -> Outcome {
    match matrix {
        Matrix::Status(pool) => status(pool),
    }
}

fn status(pool: &Pool) -> Outcome {
    let store = pool.open()?;
    let (devices, records) = (store.devices(), store.engine().len()?);
    store.close()?;
    if devices.is_empty() {
        let message = format!("{} is no matrix", pool.path().display());
        return Err(Failure::new(USAGE, message));
    }
    let name = |standing| if standing == Standing::Current { "current" } else { "absent" };
    let degraded = devices.iter().any(|(_, standing)| *standing != Standing::Current);
    let mut out = io::stdout().lock();
    if pool.json {
        let each = devices.iter().map(|(position, standing)| {
            json!({"device": position.to_string(), "standing": name(*standing)})
        });
        let each: Vec<_> = each.collect();
        let object = json!({"devices": each, "degraded": degraded, "records": records});
        json::write_line(&mut out, &object)?;
        return Ok(0);
    }
    for (position, standing) in devices {
        writeln!(out, "{position:<8} {}", name(standing))?;
    }
    writeln!(out, "records  {records}{}", if degraded { "  (degraded)" } else { "" })?;
    Ok(0)
}
