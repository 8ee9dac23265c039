//! A node of a cluster that is served, and the administration of a cluster through its servers.

use crate::arguments::{AskedCluster, Behind, Cluster, ClusterChange, ReplicaMapKind, Serve};
use crate::ask::{Answer, Asked, Refusal};
use crate::command::serve::{Place, farewell, serve_until_signal};
use crate::failure::{Cause, FAILED, Failure, Outcome, REFUSED, UNUSABLE, USAGE};
use crate::message;
use crate::terms;
use coreplane::{Durability, Placement, ReadPath};
use coreplane_cluster::{Notice, PeerSocket, Secret, Service, Settings};
use coreplane_engine::{Engine, TimeSource};
use coreplane_mvcc::{Geometry, LogMap, MapKind, Options};
use coreplane_pmem::{Medium, Pool};
use coreplane_replica::{Replica, ReplicaMap, WalBaseline, WalOptions, map_options};
use coreplane_server::{Config, Server, Sockets, Summary};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a server is asked for the progress of a change, and the time limit.
const ASKED_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest time that a leader that ends waits for a new leader.
const HANDOVER_MAX: Duration = Duration::from_millis(500);
/// The most redirections to another server.
const HOPS_MAX: usize = 4;

/// Opens the map of a node, or creates it.
fn open_map(serve: &Serve, path: &Path) -> Result<Box<dyn ReplicaMap>, Failure> {
    let (options, wal) = (options(serve), WalOptions::default());
    let failed = |error| Failure::of_pool(&error, path);
    let media = serve.pool.media.clone();
    if !path.exists() {
        return create_map(serve, path);
    }
    if path.is_dir() {
        if !WalBaseline::is_at(path) && serve.cluster.replica_map != ReplicaMapKind::Wal {
            let message = format!(
                "{} is a directory, and no write-ahead log: --replica-map wal begins one in an empty one",
                path.display()
            );
            return Err(Failure::new(UNUSABLE, message));
        }
        return Ok(Box::new(WalBaseline::open(path, &wal).map_err(failed)?));
    }
    if Pool::kind_at(path).is_ok_and(|kind| kind == WalBaseline::KIND) {
        return Ok(Box::new(WalBaseline::open_pool(path, media, &wal).map_err(failed)?));
    }
    let kind = match (coreplane::admin::engine_at(path), serve.cluster.replica_map) {
        (Some(coreplane::EngineChoice::Map(kind)), _) | (_, ReplicaMapKind::Map(kind)) => kind,
        (_, ReplicaMapKind::Wal | ReplicaMapKind::WalPool) => MapKind::List,
    };
    let map = LogMap::open(kind, path, media, &options, &|_| {}).map_err(failed)?;
    Ok(Box::new(map))
}

fn options(serve: &Serve) -> Options {
    map_options(&Options {
        check_reads: !serve.no_check_reads,
        durability: Durability::Strict,
        ..Options::default()
    })
}

/// Creates the map of a node.
fn create_map(serve: &Serve, path: &Path) -> Result<Box<dyn ReplicaMap>, Failure> {
    let failed = |error| Failure::of_pool(&error, path);
    let wal = WalOptions::default();
    if serve.cluster.replica_map == ReplicaMapKind::Wal {
        message::tell(format_args!("creating {} (a write-ahead log)", path.display()));
        return Ok(Box::new(WalBaseline::open(path, &wal).map_err(failed)?));
    }
    let (size, media) = (serve.new.size, serve.pool.media.clone());
    message::tell(format_args!("creating {} ({})", path.display(), terms::human(size)));
    let usual = Geometry::default();
    let ReplicaMapKind::Map(kind) = serve.cluster.replica_map else {
        let usual = Geometry { page_size: WalBaseline::PAGE_SIZE, ..usual };
        let size = (size, serve.new.geometry.of_map(usual).page_size);
        return Ok(Box::new(WalBaseline::create_pool(path, size, media, &wal).map_err(failed)?));
    };
    let geometry = serve.new.geometry.of_map(usual);
    let map = LogMap::create(kind, path, size, geometry, media, &options(serve)).map_err(failed)?;
    Ok(Box::new(map))
}

/// Refuses the options of a store that a node does not have.
fn refuse_options(serve: &Serve) -> Result<(), Failure> {
    let Serve { pool, new, paths, .. } = serve;
    let others = [
        ("--engine", new.engine.is_some()),
        ("--index", new.index != Placement::default()),
        ("--matrix", new.matrix.is_some()),
        ("--ack", new.ack.is_some()),
        ("--prototype", new.prototype.is_some()),
        ("--reads", paths.reads != ReadPath::default()),
        ("--accept-loss", pool.accept_loss),
    ];
    if let Some((option, _)) = others.iter().find(|(_, is_given)| *is_given) {
        let message = format!(
            "{option} is of a store that is no node of a cluster; the map of a node is chosen by --replica-map"
        );
        return Err(Failure::new(USAGE, message));
    }
    if serve.durability != Durability::Strict {
        let message =
            "a node of a cluster serves at --durability strict: its answers wait for a majority";
        return Err(Failure::new(USAGE, message));
    }
    if serve.threads > 1 {
        let message = "a node of a cluster has one event loop, which is its peers' as well";
        return Err(Failure::new(USAGE, message));
    }
    if serve.series.http_port.is_some() {
        let message = "a node of a cluster has no time series beside it: `coreplane ts serve` has";
        return Err(Failure::new(USAGE, message));
    }
    Ok(())
}

/// Serves as a node.
pub(crate) fn serve(serve: &Serve, password: Option<String>, signals: &mut Signals) -> Outcome {
    refuse_options(serve)?;
    let id = serve.cluster.cluster_id.unwrap_or_default();
    let mut peers: BTreeMap<u64, _> = serve.cluster.cluster_peers.iter().copied().collect();
    if peers.len() < serve.cluster.cluster_peers.len() {
        return Err(Failure::new(USAGE, "a node is in --cluster-peers twice"));
    }
    let Some(listen) = peers.remove(&id) else {
        let message =
            format!("node {id} is not one of --cluster-peers, which tell where it is reached");
        return Err(Failure::new(USAGE, message));
    };
    let secret = serve.cluster.cluster_password_file.as_deref().map(terms::password_in);
    let secret = secret.transpose()?.map(|password| Secret::new(&password));
    // No map is created or recovered for a node that cannot run.
    let sockets = bind(serve, listen, password.clone())?;
    let path = serve.pool.path();
    let map = open_map(serve, &path)?;
    let (medium, name) = (map.medium(), map.name());
    let members = if serve.cluster.cluster_join { Vec::new() } else { all_of(id, &peers) };
    let settings = coreplane_replica::Settings {
        id,
        peers: members,
        contacts: all_of(id, &peers),
        seed: draw(id),
        identity: draw(id),
        life: draw(id),
        ..coreplane_replica::Settings::default()
    };
    let replica = Replica::open(map, settings, None::<TimeSource>);
    let replica = Arc::new(replica.map_err(|error| Failure::of_pool(&error, &path))?);
    let node = Node { replica: Arc::clone(&replica), medium, map: name, sockets };
    let served = serve_node(serve, password, signals, node, {
        Settings {
            id,
            listen,
            peers,
            run: draw(id),
            client_port: serve.port,
            tick: serve.cluster.cluster_tick.max(Duration::from_millis(1)),
            redirects: serve.cluster.redirect,
            follower_age_max: serve.cluster.follower_age_max,
            secret,
        }
    });
    let closed = replica.close();
    let summary = served?;
    closed?;
    farewell(&summary, &path);
    Ok(0)
}

/// The sockets for clients and for peers.
fn bind(
    serve: &Serve,
    listen: SocketAddr,
    password: Option<String>,
) -> Result<(Sockets, PeerSocket), Failure> {
    if serve.port == 0 {
        return Err(Failure::new(USAGE, "a node's --port is told to its peers: it cannot be 0"));
    }
    let failed = |error| Failure::new(FAILED, format!("{listen}: {error}"));
    let peers = PeerSocket::bind(listen).map_err(failed)?;
    Ok((Sockets::bind(&super::serve::config(serve, password))?, peers))
}

/// The map that is served as a node, and its sockets.
struct Node {
    replica: Arc<Replica>,
    medium: Medium,
    map: &'static str,
    sockets: (Sockets, PeerSocket),
}

fn all_of<A>(id: u64, peers: &BTreeMap<u64, A>) -> Vec<u64> {
    std::iter::once(id).chain(peers.keys().copied()).collect()
}

/// A number that differs in each call, and is not 0.
fn draw(id: u64) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(id) | 1
}

fn serve_node(
    serve: &Serve,
    password: Option<String>,
    signals: &mut Signals,
    Node { replica, medium, map, sockets: (sockets, peers) }: Node,
    settings: Settings,
) -> Result<Summary, Failure> {
    let (id, listen) = (settings.id, settings.listen);
    let service = Service::on(peers, settings, Arc::clone(&replica), tell);
    let config = Config {
        cluster: Some(service.directory()),
        medium: medium.name.clone(),
        power_cut_loses: medium.power_cut_loses.clone(),
        power_safe: medium.power_safe,
        // Another event loop would hand each write to it.
        threads: 1,
        ..super::serve::config(serve, password)
    };
    let leader = Arc::clone(&replica);
    let server = Server::on(sockets, config, replica, Some(Box::new(service)))?;
    let engine = format!("node {id} of a cluster, peers on {listen}, map {map}");
    let place =
        Place { medium: &medium.name, loses: &medium.power_cut_loses, note: &engine, series: "" };
    serve_until_signal(serve, server, signals, &place, &|| hand_over(&leader))
}

/// Tells an event of the node.
fn tell(notice: Notice<'_>) {
    match notice {
        Notice::Stopped(what) => message::tell(format_args!("the node has stopped: {what}")),
        Notice::Refused(what) => message::tell(what),
    }
}

/// Transfers the leadership, if another node can take it: an election would take longer.
fn hand_over(replica: &Replica) {
    let id = replica.status().leader.filter(|_| replica.leads());
    let others = replica.progress().into_iter().filter(|it| Some(it.node) != id && it.is_active);
    let voters = replica.status().members.voters;
    let next = others.filter(|it| voters.contains(&it.node)).max_by_key(|it| it.matched);
    let Some(next) = next.filter(|_| id.is_some()) else { return };
    // If the transfer cannot be begun, the others elect a leader.
    let _begun = replica.transfer_leadership(next.node).is_ok();
    let since = Instant::now();
    while replica.leads() && since.elapsed() < HANDOVER_MAX {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The leader's server, and its answer to the words of a command.
pub(super) fn ask_leader(behind: &Behind, words: &[&str]) -> Result<(Asked, Answer), Failure> {
    let mut behind = behind.clone();
    for _ in 0..HOPS_MAX {
        let asked = Asked::connect(&behind)?;
        let mut asked =
            asked.ok_or_else(|| Failure::new(USAGE, "--server says which server is asked"))?;
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match asked.ask(&words) {
            Ok(answer) => return Ok((asked, answer)),
            Err(failure) => match moved(&failure.cause) {
                Some(place) => behind.server = Some(place),
                None => return Err(failure),
            },
        }
    }
    Err(Failure::new(REFUSED, "one server sends us to the next; ask again when one leads"))
}

/// The target of a redirection: the answer names a slot, and the address of its owner.
fn moved(cause: &Cause) -> Option<String> {
    let Cause::Refused(Refusal { code, text }) = cause else { return None };
    (code == "MOVED").then(|| text.split(' ').nth(1).map(str::to_owned)).flatten()
}

/// True if the same command may be sent again a little later.
fn is_to_be_tried_again(cause: &Cause) -> bool {
    matches!(cause, Cause::Refused(Refusal { code, .. }) if code == "TRYAGAIN")
}

pub(crate) fn run(cluster: &Cluster) -> Outcome {
    match cluster {
        Cluster::Status(AskedCluster { behind }) => {
            let asked = Asked::connect(behind)?;
            let mut asked =
                asked.ok_or_else(|| Failure::new(USAGE, "--server says which server is asked"))?;
            let text = asked.text(&["CLUSTER", "STATUS"])?;
            io::stdout().lock().write_all(text.as_bytes())?;
            Ok(0)
        }
        Cluster::Backup(backup) => super::backup::write(backup),
        Cluster::Restore(restore) => super::backup::restore(restore),
        Cluster::Add(change) => {
            let node = format!("node:{} voter ", change.node);
            begin(change, "ADD", |status| status.lines().any(|line| line.starts_with(&node)))
        }
        Cluster::Remove(change) => {
            let node = format!("node:{} ", change.node);
            begin(change, "REMOVE", |status| !status.lines().any(|line| line.starts_with(&node)))
        }
        Cluster::Transfer(change) => {
            let leader = format!("leader:{}", change.node);
            begin(change, "TRANSFER", |status| status.lines().any(|line| line == leader))
        }
    }
}

/// Starts a change, and waits until it is done.
fn begin(change: &ClusterChange, what: &str, is_done: impl Fn(&str) -> bool) -> Outcome {
    let (since, node, mut has_begun) = (Instant::now(), change.node.to_string(), false);
    loop {
        // A leader that is to be removed transfers the leadership first, and another change may be pending.
        let refused = match ask_leader(&change.behind, &["CLUSTER", what, &node]) {
            Ok(_) => None,
            Err(failure) if is_to_be_tried_again(&failure.cause) => Some(failure),
            Err(failure) => return Err(failure),
        };
        has_begun |= refused.is_none();
        std::thread::sleep(ASKED_EVERY);
        if let Ok((_, status)) = ask_leader(&change.behind, &["CLUSTER", "STATUS"])
            && is_done(&String::from_utf8_lossy(status.bytes().unwrap_or_default()))
        {
            return Ok(0);
        }
        if since.elapsed() > PATIENCE {
            return Err(overdue(what, has_begun, refused));
        }
    }
}

/// The failure of a change that is not done in time, and was `refused` at last. Consensus gives up a transfer by
/// itself; other changes that have begun go on.
fn overdue(what: &str, has_begun: bool, refused: Option<Failure>) -> Failure {
    let message = "it has begun, and is not done yet; `coreplane cluster status` tells";
    let refused = refused.filter(|_| !has_begun || what == "TRANSFER");
    refused.unwrap_or_else(|| Failure::new(REFUSED, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_where_the_leader_is() {
        let refused = |code: &str, text: &str| {
            Cause::Refused(Refusal { code: code.to_owned(), text: text.to_owned() })
        };
        let sent = refused("MOVED", "0 10.0.0.1:7001");
        assert_eq!(moved(&sent), Some("10.0.0.1:7001".to_owned()));
        let later = refused("TRYAGAIN", "nobody leads");
        assert_eq!(moved(&later), None);
        assert!(is_to_be_tried_again(&later) && !is_to_be_tried_again(&sent));
        // Words inside the text of an error are no code.
        let said = refused("ERR", "TRYAGAIN MOVED 0 10.0.0.1:7001");
        assert!(moved(&said).is_none() && !is_to_be_tried_again(&said));
    }

    #[test]
    fn a_transfer_that_was_given_up_does_not_go_on() {
        let told = |what, has_begun| {
            let refused = Failure::new(REFUSED, "TRYAGAIN node 2 does not answer");
            overdue(what, has_begun, Some(refused)).message
        };
        for what in ["ADD", "REMOVE"] {
            assert!(told(what, true).starts_with("it has begun"));
            assert!(told(what, false).starts_with("TRYAGAIN"));
        }
        assert!(told("TRANSFER", true).starts_with("TRYAGAIN"));
        assert!(overdue("TRANSFER", true, None).message.starts_with("it has begun"));
    }
}
