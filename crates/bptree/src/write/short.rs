//! Puts, whatever was there, most of which need no more than an append to a leaf.

use crate::read::get::Whole;
use crate::write::Writer;
use crate::write::plan::{Plan, RestsOn};
use coreplane_engine::{Beside, Brief, Outcome, Result, WriteOptions, Written};
use std::borrow::Cow;

impl Writer {
    /// Puts `key`, whatever was there.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        match self.put_short((key, value), options, None)? {
            // Word by word: see Store::finish.
            Some(Written { sequence, ticket, replaced }) if self.early.is_none() => {
                Ok(Outcome::Written(Written { sequence, ticket, replaced }))
            }
            Some(written) => self.finish(Outcome::Written(written), options),
            None => self.put_long(key, value, options),
        }
    }

    /// The same, and what came of it in two words; no more than an append with `beside`.
    pub(crate) fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        let is_alone = beside.is_none();
        let put = match beside {
            None => self.put_short((key, value), options, None),
            beside => self.put_short((key, value), options, beside),
        };
        match put {
            Ok(Some(written)) if self.early.is_none() => {
                if written.replaced {
                    Brief::Replaced
                } else {
                    Brief::New
                }
            }
            Ok(Some(written)) => Brief::of(self.finish(Outcome::Written(written), options)),
            Ok(None) if is_alone => Brief::of(self.put_long(key, value, options)),
            Ok(None) => Brief::Declined,
            Err(error) => Brief::of(Err(error)),
        }
    }

    /// Puts `key` if that needs no more than an append to its leaf.
    #[inline(always)]
    fn put_short(
        &self,
        (key, value): (&[u8], &[u8]),
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Result<Option<Written>> {
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)?;
        if value.len() > self.inline_max() || self.is_long(key) {
            return Ok(None);
        }
        self.put_ahead((key, value), options, beside)
    }

    fn put_long(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let mut plan =
            |_: Option<&Whole<'_>>| Ok(Plan::Put { value: Cow::Borrowed(value), expires_at });
        self.write(key, (options, RestsOn::Nothing), &mut plan)
    }
}
