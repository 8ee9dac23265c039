//! The sockets between nodes in the loop's poll, and the clock.

use crate::directory::Directory;
use crate::frame::{Frame, Hello, parse};
use crate::handshake::{Party, numbers_in};
use crate::link::Link;
use crate::receiver::{Blame, Piece, Receiver};
use crate::refusal::Fault;
use crate::secret::Secret;
use coreplane_replica::{Envelope, NodeId, Replica};
use coreplane_server::{PolledService, Wake};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The tokens of the listener and, behind it, of the links; those of incoming connections are behind these. So many
/// nodes are known at most, since peers and strangers may name any number.
const LINKS: usize = 64;
/// The most connections without a hello: the oldest one ends when there are more. Also the most nodes of other
/// clusters that are named.
const STRANGERS_MAX: usize = 64;
/// The most connections that are accepted at once. The next tick accepts more.
const ACCEPTED_MAX: usize = 64;
/// The bytes that are read at once.
const PIECE: usize = 64 << 10;
/// The pieces that are read of a connection in a turn: a peer that sends without an end delays the others no longer.
const PIECES_MAX: usize = 64;
/// The most ticks that are made up for: a node that was paused has not been without a leader for all that time.
const TICKS_MAX: u32 = 3;
/// The largest part of a tick that goes into the sweep of expired records, while there are many.
const SWEEP_PART: u32 = 4;

/// The settings of a node in its cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its number.
    pub id: NodeId,
    /// The address for its peers.
    pub listen: SocketAddr,
    /// The addresses of its peers.
    pub peers: BTreeMap<NodeId, SocketAddr>,
    /// Different for each process.
    pub run: u64,
    /// The port of its clients.
    pub client_port: u16,
    /// The time between two ticks of consensus.
    pub tick: Duration,
    /// Whether clients are told the leader's address, instead of being served by way of it.
    pub redirects: bool,
    /// The greatest age of the state that a follower serves to clients that ask for it (`READONLY`); otherwise the
    /// leader answers.
    pub follower_age_max: Duration,
    /// The password of the cluster. Without one, any process that reaches the address for peers is taken for a node.
    pub secret: Option<Secret>,
}

/// A socket that listens for peers, before there is a node.
#[derive(Debug)]
pub struct PeerSocket(TcpListener);

impl PeerSocket {
    /// Listens at an address.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).map(Self)
    }
}

/// An event that an operator wants to know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice<'n> {
    /// The node has stopped, for this reason.
    Stopped(&'n str),
    /// A peer was refused: which one, and the reason. A peer that tries again and again is told of once.
    Refused(&'n str),
}

/// Is told of events.
type OnNotice = Box<dyn FnMut(Notice<'_>) + Send>;

/// The sockets between nodes, and the clock.
pub struct Service {
    settings: Settings,
    replica: Arc<Replica>,
    directory: Arc<Directory>,
    listener: TcpListener,
    tokens: Range<usize>,
    links: BTreeMap<NodeId, (usize, Link)>,
    incoming: Slab<Receiver>,
    /// Incoming connections with more than was read.
    unread: BTreeSet<usize>,
    /// The process from which each node has said hello.
    runs: BTreeMap<NodeId, u64>,
    /// More is durable.
    is_persisted: Arc<AtomicBool>,
    next_tick: Instant,
    swept: Vec<u8>,
    on_notice: OnNotice,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Service {
    /// Listens for peers. `on_notice` is called when the node stops, and when it refuses a peer.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn bind(
        settings: Settings,
        replica: Arc<Replica>,
        on_notice: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self::on(PeerSocket::bind(settings.listen)?, settings, replica, on_notice))
    }

    /// As [`Service::bind`], on a socket that was bound before, at [`Settings::listen`].
    pub fn on(
        PeerSocket(listener): PeerSocket,
        settings: Settings,
        replica: Arc<Replica>,
        on_notice: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Self {
        let Settings { id, redirects, follower_age_max, .. } = settings;
        let directory = Directory::new(id, Arc::clone(&replica), redirects, follower_age_max);
        Self {
            directory: Arc::new(directory),
            listener,
            tokens: 0..0,
            links: BTreeMap::new(),
            incoming: Slab::new(),
            unread: BTreeSet::new(),
            runs: BTreeMap::new(),
            is_persisted: Arc::default(),
            next_tick: Instant::now(),
            swept: Vec::new(),
            on_notice: Box::new(on_notice),
            settings,
            replica,
        }
    }

    /// The directory for the loops of the server.
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    fn hello(&self) -> Hello {
        let cluster = self.replica.cluster();
        let Settings { id, run, client_port, listen, .. } = self.settings;
        let known = self.links.iter().filter_map(|(id, (_, link))| Some((*id, link.address()?)));
        let known = known.collect();
        Hello { cluster, id, run, client_port, peer_port: listen.port(), known }
    }

    /// Notes the address of a node, as a setting or another node names it.
    fn learn(&mut self, id: NodeId, address: SocketAddr) {
        if id == self.settings.id || id == 0 {
            return;
        }
        if let Some((_, link)) = self.links.get_mut(&id) {
            return link.hear(address);
        }
        let place = self.links.len() + 1;
        if place < LINKS {
            let token = Token(self.tokens.start + place);
            self.links.insert(id, (place, Link::new(id, address, token, Instant::now())));
        }
    }

    fn accept(&mut self, registry: &Registry) {
        let own = Party { id: self.settings.id, cluster: self.replica.cluster() };
        for _ in 0..ACCEPTED_MAX {
            let Ok((mut stream, address)) = self.listener.accept() else { return };
            let entry = self.incoming.vacant_entry();
            let token = Token(self.tokens.start + LINKS + entry.key());
            if registry.register(&mut stream, token, Interest::READABLE).is_ok()
                && let Ok(incoming) =
                    Receiver::new(stream, address.ip(), self.settings.secret.as_ref(), own)
            {
                entry.insert(incoming);
            }
            self.bound_strangers(registry);
        }
    }

    /// Ends the oldest connection without a hello, if there are too many: one from a host of no node, if there is one.
    fn bound_strangers(&mut self, registry: &Registry) {
        let addresses = self.links.values().filter_map(|(_, link)| link.address());
        let hosts: Vec<IpAddr> = addresses.map(|it| it.ip().to_canonical()).collect();
        let of = |(key, it): (usize, &Receiver)| {
            it.stranger_since().map(|since| (hosts.contains(&it.ip.to_canonical()), since, key))
        };
        let strangers = self.incoming.iter().filter_map(of);
        let (count, first) = (strangers.clone().count(), strangers.min());
        if let Some((_, _, key)) = first.filter(|_| count > STRANGERS_MAX) {
            self.close(registry, key);
        }
    }

    /// Reads what has arrived on a connection, and takes its frames. If it is very much, the next turn reads on.
    fn read(&mut self, registry: &Registry, key: usize) {
        let mut piece = [0; PIECE];
        for number in 1..=PIECES_MAX {
            let Some(incoming) = self.incoming.get_mut(key) else { return };
            let read = incoming.read(&mut piece);
            // Of a stranger no more is read before its first frames are taken.
            if matches!(read, Piece::Some) && incoming.id.is_some() && number < PIECES_MAX {
                continue;
            }
            let input = incoming.take_input();
            let taken = self.take_frames(registry, key, &input);
            match (taken, read) {
                (Ok(at), Piece::Some | Piece::All) => {
                    let Some(incoming) = self.incoming.get_mut(key) else { return };
                    incoming.put_back(input, at);
                    if let Some(id) = incoming.id.filter(|_| incoming.has_part()) {
                        self.replica.hear_part(id);
                    }
                }
                _ => return self.close(registry, key),
            }
            if matches!(read, Piece::All) {
                return;
            }
        }
        self.unread.insert(key);
    }

    /// Takes the whole frames: the number of their bytes.
    fn take_frames(&mut self, registry: &Registry, key: usize, input: &[u8]) -> Result<usize, ()> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            let incoming = self.incoming.get_mut(key).ok_or(())?;
            let ip = incoming.ip;
            let next = incoming.next_frame(rest).map_err(|fault| self.refuse(ip, fault))?;
            let Some((len, seal_len)) = next else { return Ok(at) };
            at += len + seal_len;
            self.take(registry, key, parse(rest.get(..len).unwrap_or_default())?)?;
        }
    }

    /// Takes a frame.
    fn take(&mut self, registry: &Registry, key: usize, frame: Frame<'_>) -> Result<(), ()> {
        let incoming = self.incoming.get_mut(key).ok_or(())?;
        let ip = incoming.ip;
        if incoming.is_proving() {
            let proved = incoming.prove(&frame).map_err(|fault| self.refuse(ip, fault))?;
            if let Some(id) = proved {
                self.directory.nodes.lock().refusals.forget(id, ip);
            }
            return Ok(());
        }
        match (frame, incoming.id) {
            (Frame::Hello(hello), None) if incoming.may_be(hello.id) => {
                let own = self.replica.cluster();
                if own != 0 && hello.cluster != 0 && own != hello.cluster {
                    let address = SocketAddr::new(ip, hello.peer_port);
                    let strangers = &mut self.directory.nodes.lock().strangers;
                    if strangers.len() < STRANGERS_MAX {
                        strangers.insert(address, hello.id);
                    }
                    return Err(());
                }
                let is_known =
                    self.runs.contains_key(&hello.id) || self.links.contains_key(&hello.id);
                if self.runs.len() >= LINKS && !is_known {
                    return Err(());
                }
                incoming.id = Some(hello.id);
                self.greet(registry, key, &hello, ip);
                Ok(())
            }
            (Frame::Envelope(bytes), Some(id)) => {
                let envelope = Envelope::decode(bytes).map_err(|_| ())?;
                if envelope.from != id {
                    return Err(());
                }
                let received = self.replica.receive(envelope);
                self.note(received);
                Ok(())
            }
            (Frame::Opening(opening), None) if self.settings.secret.is_none() => {
                let (id, _) = numbers_in(opening).ok_or(())?;
                self.refuse(ip, Some((id, Fault::Password)));
                Err(())
            }
            _ => Err(()),
        }
    }

    /// Notes that a peer was refused, if one is known.
    fn refuse(&mut self, ip: IpAddr, refused: Blame) {
        let Some((id, fault)) = refused else { return };
        let text = self.directory.nodes.lock().refusals.note((id, ip), fault, Instant::now());
        if let Some(text) = text {
            (self.on_notice)(Notice::Refused(&text));
        }
    }

    /// Takes a hello. If it is of another process than before, the connections of the earlier process are closed.
    fn greet(&mut self, registry: &Registry, key: usize, hello: &Hello, ip: IpAddr) {
        let before = self.runs.insert(hello.id, hello.run);
        let is_other = before.is_some_and(|run| run != hello.run);
        if let Some((_, link)) = self.links.get_mut(&hello.id).filter(|_| is_other) {
            link.close(registry, Instant::now());
        }
        let is_older = |(other, it): &(usize, &Receiver)| *other != key && it.id == Some(hello.id);
        let older: Vec<usize> = self.incoming.iter().filter(is_older).map(|it| it.0).collect();
        older.into_iter().for_each(|other| self.close(registry, other));
        let clients = SocketAddr::new(ip, hello.client_port);
        let last = self.directory.nodes.lock().clients.insert(hello.id, clients);
        let is_news = before != Some(hello.run) || last.is_some_and(|last| last.ip() != ip);
        let (now, address) = (Instant::now(), SocketAddr::new(ip, hello.peer_port));
        match self.links.get_mut(&hello.id) {
            Some((_, link)) => link.greeted(registry, now, address, is_news),
            None => self.learn(hello.id, address),
        }
        hello.known.iter().for_each(|(id, address)| self.learn(*id, *address));
        let own = self.hello();
        if let Some((_, link)) = self.links.get_mut(&hello.id) {
            link.keep(registry, now, &own, self.settings.secret.as_ref());
        }
    }

    /// The socket of the link at this place is ready.
    fn ready_link(&mut self, registry: &Registry, place: usize) {
        let link = self.links.iter_mut().find(|(_, (at, _))| *at == place);
        let Some((id, (_, link))) = link else { return };
        let Some(address) = link.address() else { return };
        match (*id, link.ready(registry, Instant::now())) {
            (_, None) => {}
            (id, Some(Ok(()))) => self.directory.nodes.lock().refusals.forget(id, address.ip()),
            (id, Some(Err(fault))) => self.refuse(address.ip(), Some((id, fault))),
        }
    }

    fn close(&mut self, registry: &Registry, key: usize) {
        if let Some(mut incoming) = self.incoming.try_remove(key) {
            // Closing the socket deregisters it as well.
            let _closed = registry.deregister(&mut incoming.stream).is_ok();
        }
    }

    /// Records the reason why the node has stopped.
    fn note(&mut self, done: coreplane_engine::Result<()>) {
        let Err(error) = done else { return };
        let mut known = self.directory.nodes.lock();
        if known.failure.is_none() {
            let what = error.to_string();
            (self.on_notice)(Notice::Stopped(&what));
            known.failure = Some(what);
        }
    }

    fn tick(&mut self, registry: &Registry, now: Instant) {
        let mut ticks = 0;
        while self.next_tick <= now {
            self.next_tick += self.settings.tick;
            ticks += 1;
        }
        if ticks == 0 {
            return;
        }
        for _ in 0..ticks.min(TICKS_MAX) {
            let done = self.replica.tick();
            self.note(done);
        }
        // The poll does not report again a connection that could not be accepted, for example for want of a
        // descriptor.
        self.accept(registry);
        let late = self.incoming.iter().filter(|(_, it)| it.is_late(now)).map(|(key, _)| key);
        late.collect::<Vec<_>>().into_iter().for_each(|key| self.close(registry, key));
        self.directory.nodes.lock().refusals.tend(now);
        let (hello, secret) = (self.hello(), self.settings.secret.as_ref());
        self.links.values_mut().for_each(|(_, link)| link.keep(registry, now, &hello, secret));
        // A node that does not lead has nothing to sweep, and one with too much under way sweeps later.
        let until = Instant::now() + self.settings.tick / SWEEP_PART;
        let _swept = self.replica.sweep_on(&mut self.swept, &mut || Instant::now() < until).is_ok();
    }
}

impl PolledService for Service {
    fn start(&mut self, registry: &Registry, tokens: Range<usize>, wake: Wake) -> io::Result<()> {
        self.tokens = tokens;
        registry.register(&mut self.listener, Token(self.tokens.start), Interest::READABLE)?;
        let peers = self.settings.peers.clone();
        peers.into_iter().for_each(|(id, address)| self.learn(id, address));
        let (flag, waker) = (Arc::clone(&self.is_persisted), wake);
        self.replica.on_durable_here(Arc::new(move || {
            flag.store(true, Ordering::Release);
            waker();
        }));
        Ok(())
    }

    fn ready(&mut self, registry: &Registry, event: &Event) {
        let place = event.token().0 - self.tokens.start;
        match place {
            0 => self.accept(registry),
            place if place < LINKS => self.ready_link(registry, place),
            place => self.read(registry, place - LINKS),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.unread.is_empty() {
            true => Some(self.next_tick),
            false => Some(Instant::now()),
        }
    }

    fn begin_turn(&mut self, registry: &Registry, now: Instant) {
        if self.is_persisted.swap(false, Ordering::AcqRel) {
            let done = self.replica.persisted();
            self.note(done);
        }
        let unread = std::mem::take(&mut self.unread);
        unread.into_iter().for_each(|key| self.read(registry, key));
        self.tick(registry, now);
        self.directory.refresh();
    }

    fn end_turn(&mut self, registry: &Registry) {
        for envelope in self.replica.take_envelopes() {
            if let Some((_, link)) = self.links.get_mut(&envelope.to) {
                link.push(&envelope);
            }
        }
        let now = Instant::now();
        self.links.values_mut().for_each(|(_, link)| link.flush(registry, now));
    }
}
