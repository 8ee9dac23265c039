use super::*;
use coreplane_conformance::model::ModelEngine;
use std::sync::Arc;

fn record(groups: usize, devices: usize) -> MembershipRecord {
    let identities: Vec<Vec<String>> = (0..groups)
        .map(|group| (0..devices).map(|device| format!("{group}-{device}")).collect())
        .collect();
    MembershipRecord::new("matrix".to_owned(), Ack::All, &identities)
}

#[test]
fn a_record_is_short_and_reads_as_it_was_written() {
    for groups in [1, 2, 16, 17, 256] {
        let record = record(groups, 2);
        let text = serde_json::to_string(&record).expect("text");
        assert!(groups > 2 || text.len() < 1600, "{} bytes", text.len());
        assert_eq!(serde_json::from_str::<MembershipRecord>(&text).expect("a record"), record);
    }
    let text = serde_json::to_string(&record(2, 2)).expect("text");
    let cut = text.replace("\"owners\":\"", "\"owners\":\"0");
    assert!(serde_json::from_str::<MembershipRecord>(&cut).is_err());
}

#[test]
fn a_record_that_nobody_wrote_is_damage() {
    let engine = Guarded::new(Arc::new(ModelEngine::new())).expect("a device");
    let of = |change: &dyn Fn(&mut MembershipRecord)| {
        let mut record = record(2, 2);
        change(&mut record);
        record.write(&engine).expect("write");
        engine.call(MembershipRecord::read)
    };
    assert!(matches!(of(&|_| {}), Ok(Some(_))));
    let member = Member { identity: "more".to_owned(), state: MemberState::Current };
    let nine = || vec![member.clone(); 9];
    let changes: [&dyn Fn(&mut MembershipRecord); 9] = [
        &|record| record.members[1] = nine(),
        &|record| record.planned = Some(nine()),
        &|record| record.position.device = 8,
        &|record| record.position.group = u16::MAX,
        &|record| record.epoch = u64::MAX,
        &|record| record.watermark = u64::MAX,
        &|record| record.primaries[1] = 2,
        &|record| record.primaries = vec![1],
        &|record| record.committed = record.epoch + 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let read = of(change);
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{number}: {read:?}");
    }
}

fn latest(record: &MembershipRecord, missing: &[(u16, u8)]) -> bool {
    record.is_latest(|Position { group, device }| !missing.contains(&(group, device)))
}

#[test]
fn a_group_that_is_all_there_proves_the_record() {
    let two_by_two = record(2, 2);
    assert!(latest(&two_by_two, &[]));
    assert!(latest(&two_by_two, &[(0, 1)]), "one is missing, the other group is whole");
    assert!(!latest(&two_by_two, &[(0, 1), (1, 0)]), "neither group is whole");
    assert!(!latest(&record(1, 2), &[(0, 0)]));
    let mut degraded = record(1, 2);
    degraded.members[0][0].state = MemberState::Absent;
    assert!(latest(&degraded, &[(0, 0)]), "who is missing is no member any more");
}
