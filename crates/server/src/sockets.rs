//! The sockets of a server, bound before the server exists.
//!
//! A port that another program uses is an error that users see often. A user should learn of it before a pool of many
//! gigabytes is made, or a long recovery done. So the sockets come first, then the store, then the server:
//!
//! ```text
//!   Sockets::bind ──► the store is opened or created ──► Server::on
//! ```
//!
//! Clients that connect meanwhile wait in the backlog of the system; they are answered once the server runs. Sockets
//! that are dropped without a server leave nothing behind.

use crate::Result;
use crate::config::Config;
use crate::listener::Listeners;
use crate::metrics::Metrics;

/// Sockets that listen, for clients and for scrapes.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) listeners: Listeners,
    pub(crate) metrics: Option<Metrics>,
}

impl Sockets {
    /// Listens where `config` says: [`Config::bind`], [`Config::port`], [`Config::unix_socket`] and
    /// [`Config::metrics`].
    ///
    /// # Errors
    /// [`Error::Listen`](crate::Error::Listen), [`Error::NowhereToListen`](crate::Error::NowhereToListen).
    pub fn bind(config: &Config) -> Result<Self> {
        let listeners = Listeners::bind(config)?;
        let metrics = config.metrics.as_deref().map(Metrics::bind).transpose()?;
        Ok(Self { listeners, metrics })
    }
}
