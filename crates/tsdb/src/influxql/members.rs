//! The tallies of many series in few groups. Several threads make them ahead ([`InOrder`]); the query's own thread
//! adds them up in the order of members.
//!
//! Every thread checks before each series, and within long ones, whether the query has to end.

use super::Limits;
use super::ahead::{self, InOrder};
use super::ast::Cast;
use super::budget::{Fallible, end_of};
use super::group::{Group, Member};
use super::interval::Interval;
use super::plan::{Plan, Range};
use super::series::{Fields, HELD, Reading, Tallies, bytes_of, direct, fields_of};
use super::stream::Context;
use crate::read::Scope;
use std::cell::Cell;

/// The tallies of a member, and the numbers of buckets and of bytes of texts to ask the budget for.
#[derive(Debug)]
pub(super) struct Made {
    /// The tallies of each field.
    pub(super) tallies: Vec<Tallies>,
    /// Buckets of all fields.
    pub(super) buckets: usize,
    /// Bytes of the texts in them.
    pub(super) texts: usize,
}

impl ahead::Held for Made {
    fn bytes(&self) -> usize {
        let tallies: usize = self.tallies.iter().map(|it| bytes_of(it)).sum();
        tallies.saturating_add(size_of::<Self>())
    }
}

/// The data to read of members. All threads share it.
struct Read<'a, 's> {
    scopes: Vec<&'a Scope<'s>>,
    fields: Vec<(&'a str, Cast)>,
    range: Range,
    interval: Option<Interval>,
    is_last: bool,
    is_count: bool,
}

impl Read<'_, '_> {
    /// The tallies of a member with its number in its group; none if the query's own thread has to read it.
    fn made(&self, (member, number): (&Member<'_>, u32), part: &Limits) -> Option<Made> {
        let Self { range, interval, is_last, is_count, .. } = *self;
        let fields: &Fields<'_> = &self.fields;
        end_of(part).ok()?;
        let direct = direct(member, fields)?;
        let scope = self.scopes.get(direct.of.reader)?;
        let (buckets, of_texts) = (Cell::new(0), Cell::new(0));
        let most = |count: usize, texts: usize| {
            buckets.set(count.max(buckets.get()));
            of_texts.set(texts.max(of_texts.get()));
            let bytes = count.saturating_mul(HELD).saturating_add(texts);
            if bytes > part.bytes_max { Err(String::new()) } else { Ok(()) }
        };
        let reading = Reading { scope, range, interval, is_last, is_count, limits: part };
        let tallies = direct.tallies(reading, number, &most).ok()?;
        Some(Made { tallies, buckets: buckets.get(), texts: of_texts.get() })
    }
}

/// See the module.
pub(super) struct ReadAhead<'a> {
    members: InOrder<'a, (&'a Member<'a>, u32), Made>,
    range: Range,
}

impl<'a> ReadAhead<'a> {
    /// Nothing is read yet. None if there is nothing to read ahead.
    pub(super) fn new<'s: 'a>(
        context: Context<'a, 's>,
        plan: &'a Plan,
        groups: &'a [Group<'a>],
    ) -> Option<Self> {
        let range = plan.calls().first().map(|it| plan.range_before(it.buckets_before()))?;
        let read = Read {
            scopes: context.inputs.scopes(),
            fields: fields_of(plan, range),
            range,
            interval: plan.interval,
            is_last: plan.is_last(),
            is_count: plan.is_count(),
        };
        if read.fields.is_empty() || range.start > range.end {
            return None;
        }
        let members = groups.iter().flat_map(|it| it.members.iter().zip(0..)).collect();
        let make = Box::new(move |of: &(&Member<'_>, u32), part: &Limits| read.made(*of, part));
        Some(Self { members: InOrder::new(context.budget, members, make), range })
    }

    /// The tallies of a member, by its number among the members of all groups, for calls of a range. None if the
    /// caller has to make them.
    ///
    /// # Errors
    /// An error if the query has to end.
    pub(super) fn take(&self, at: usize, range: Range) -> Fallible<Option<Made>> {
        if range == self.range { self.members.take(at) } else { Ok(None) }
    }
}
