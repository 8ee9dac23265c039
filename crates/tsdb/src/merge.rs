//! Points of several sources as one: of points of the same time that of the newest source wins.

use crate::value::Block;

/// Points of a source in any order, sorted by time: of equal times the last point wins.
pub(crate) fn ascending(block: Block) -> Block {
    let is_ascending = block.times.is_sorted_by(|one, other| one < other);
    if is_ascending {
        return block;
    }
    let time = |at: &usize| block.times.get(*at).copied().unwrap_or(0);
    let mut places: Vec<usize> = (0..block.len()).collect();
    // Stable: of equal times the last one stays last.
    places.sort_by_key(time);
    let mut kept: Vec<usize> = Vec::with_capacity(places.len());
    for at in places {
        match kept.last_mut() {
            Some(last) if time(last) == time(&at) => *last = at,
            _ => kept.push(at),
        }
    }
    let times = kept.iter().map(time).collect();
    Block { times, values: block.values.gather(kept.into_iter()) }
}

/// The points of sources as one block; none if there is no source. Each source ascends; the oldest comes first.
pub(crate) fn merged(sources: impl IntoIterator<Item = Block>) -> Option<Block> {
    let mut sources = sources.into_iter();
    let mut all = sources.next()?;
    let Some(second) = sources.next() else { return Some(all) };
    for source in std::iter::once(second).chain(sources) {
        all.extend(&source, 0..source.len());
    }
    Some(ascending(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Column;

    fn block(points: &[(i64, i64)]) -> Block {
        let times = points.iter().map(|it| it.0).collect();
        Block { times, values: Column::Integer(points.iter().map(|it| it.1).collect()) }
    }

    #[test]
    fn the_newest_of_a_time_wins() {
        let sources = [
            block(&[(1, 10), (3, 30), (5, 50)]),
            block(&[(2, 21), (3, 31)]),
            block(&[(3, 32), (9, 92)]),
        ];
        let expected = block(&[(1, 10), (2, 21), (3, 32), (5, 50), (9, 92)]);
        assert_eq!(merged(sources), Some(expected));
        let any = block(&[(5, 1), (3, 1), (5, 2), (4, 1), (3, 3)]);
        assert_eq!(ascending(any), block(&[(3, 3), (4, 1), (5, 2)]));
    }
}
