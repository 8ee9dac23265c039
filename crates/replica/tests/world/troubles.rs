//! The faults of a story.

use crate::cluster::{Call, NODES, World, draw_identity};
use crate::draw::Draw;
use crate::seat::Seat;
use coreplane_replica::{MemberChange, Replica, Role};

impl World {
    /// Lets faults happen.
    pub(crate) fn troubles(&mut self) {
        let id = 1 + self.draw.below(NODES);
        if self.faults.crashes && self.draw.once_in(80) {
            let ends = self.draw.once_in(3);
            let Some(seat) = self.seats.get_mut(&id) else { return };
            match ends {
                true => seat.kill(),
                false => seat.cut(false, &mut self.draw),
            }
            self.forget(id);
        }
        if self.draw.once_in(40) {
            self.start(id);
        }
        if self.faults.pools && self.draw.once_in(6) {
            self.lose_a_pool(id);
        }
        if self.faults.members && self.draw.once_in(30) {
            self.change_members();
        }
        if self.faults.partitions && self.draw.once_in(60) {
            let other = 1 + self.draw.below(NODES);
            self.network.cut.insert((id, other));
            if self.draw.once_in(2) {
                self.network.cut.insert((other, id));
            }
            if self.draw.once_in(2) {
                // Cuts it from all, one way or both.
                let back = self.draw.once_in(2);
                for peer in 1..=NODES {
                    self.network.cut.insert((id, peer));
                    if back {
                        self.network.cut.insert((peer, id));
                    }
                }
            }
        }
        if self.draw.once_in(50) {
            self.network.cut.clear();
        }
    }

    /// A pool is wiped, or an older copy is put back, while all others have everything: a cluster survives one such
    /// loss at a time.
    fn lose_a_pool(&mut self, id: u64) {
        if self.draw.once_in(2) {
            if let Some(seat) = self.seats.get_mut(&id) {
                seat.copy();
            }
            return;
        }
        let all = self.statuses();
        let newest = all.iter().map(|it| it.newest).max();
        let members = all.first().map(|it| it.members.clone()).unwrap_or_default();
        let is_healthy = members.voters.len() > 2
            && members.voters_outgoing.is_empty()
            && all.len() == (1..=NODES).filter(|id| members.has(*id)).count()
            && all.iter().all(|it| it.role != Role::Installing && Some(it.applied) == newest);
        if !is_healthy {
            return;
        }
        self.pools += 1;
        let (identity, wipes) = (draw_identity(self.seed, id, self.pools), self.draw.once_in(2));
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let is_lost = match wipes {
            true => {
                seat.wipe(identity);
                true
            }
            false => seat.put_back(),
        };
        if is_lost {
            self.lost += 1;
            self.forget(id);
            self.hear(id);
        }
    }

    /// The leader changes the role of some node, or of two at once.
    fn change_members(&mut self) {
        let has_all = |seat: &Seat| {
            let role = seat.node.as_ref().map(|node| node.status().role);
            role.is_some_and(|role| role != Role::Installing)
        };
        let members = self.statuses().first().map(|it| it.members.clone()).unwrap_or_default();
        let mut others = self.seats.values().filter(|seat| members.has(seat.settings.id));
        if self.lost > 0 && !others.all(has_all) {
            // A lost pool is filled first: two of three voters may be all that are left, the lost one included.
            return;
        }
        let leads =
            |seat: &Seat| seat.node.as_ref().is_some_and(|node| node.status().role == Role::Leader);
        let Some((id, seat)) = self.seats.iter_mut().find(|(_, seat)| leads(seat)) else { return };
        let (id, Some(node)) = (*id, seat.node.as_ref()) else { return };
        let members = node.status().members;
        let change = |draw: &mut Draw| {
            let other = 1 + draw.below(NODES);
            match draw.below(4) {
                0 => MemberChange::Learner(other),
                // A single power cut stops a cluster of two voters.
                1 if members.voters.len() > 3 => MemberChange::Remove(other),
                _ => MemberChange::Voter(other),
            }
        };
        let mut changes = vec![change(&mut self.draw)];
        if self.draw.once_in(3) {
            changes.push(change(&mut self.draw));
        }
        let left = members.voters.iter().filter(|it| {
            !changes.iter().any(|change| {
                matches!(change, MemberChange::Learner(node) | MemberChange::Remove(node) if node == *it)
            })
        });
        if left.count() < 2 {
            return;
        }
        if let Ok(ticket) = node.change_members(&changes) {
            self.open.entry(id).or_default().push((ticket, Call::Members));
        }
        self.call(id, Replica::persisted);
    }
}
