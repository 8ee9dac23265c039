//! A tag and a field of one name.

use super::{asked, opened, point, rendered};

#[test]
fn a_tag_is_told_from_a_field_of_its_name() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let points = ["x,host=a host=1 5", "x,host=b host=2 5"].map(point);
    assert_eq!(store.write("d", None, &points).unwrap().written, 2);
    let said = |text: &str| rendered(&asked(&store, text));
    let of_a = "- {} key\n  \"x,host=a\"\n";
    assert_eq!(said("SHOW SERIES FROM x WHERE host::tag = 'a'"), of_a);
    let values = said("SHOW TAG VALUES WITH KEY = host WHERE host::tag = 'a'");
    assert_eq!(values, "x {} key, value\n  \"host\", \"a\"\n");
    // Without a kind it is the field, on which no series depends.
    assert_eq!(said("SHOW SERIES WHERE host = 'a'").lines().count(), 3);
    assert!(said("DROP SERIES WHERE host = 'a'").starts_with("! fields not supported"));
    assert_eq!(said("DROP SERIES FROM x WHERE host::tag = 'b'"), "");
    assert_eq!(said("SHOW SERIES"), of_a);
}
