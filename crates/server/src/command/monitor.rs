//! Clients that watch the commands of others.

use super::{Answer, Call};
use crate::host::Host;
use crate::session::Session;

/// `MONITOR`
pub(super) fn monitor(call: &mut Call<'_, '_>) -> Answer {
    if !call.session.is_monitor {
        call.session.is_monitor = true;
        let info = &call.session.info;
        info.is_monitor.store(true, std::sync::atomic::Ordering::Relaxed);
        call.host.monitors.add(info.member, info.key, info.id);
    }
    call.reply.ok();
    Ok(())
}

/// Stops watching.
pub(crate) fn stop(session: &mut Session, host: &Host) {
    if std::mem::take(&mut session.is_monitor) {
        session.info.is_monitor.store(false, std::sync::atomic::Ordering::Relaxed);
        host.monitors.remove(session.info.id);
    }
}
