use super::*;

fn changes() -> [RowChange<(u64, String)>; 4] {
    let row = |number| (number, format!("row {number}"));
    [
        RowChange::Insert(row(1)),
        RowChange::UpdateBefore(row(2)),
        RowChange::UpdateAfter(row(300)),
        RowChange::Delete(row(4)),
    ]
}

#[test]
fn changes_come_back_from_json_and_postcard() {
    for (change, op) in changes().into_iter().zip(["+I", "-U", "+U", "-D"]) {
        let text = serde_json::to_string(&change).unwrap();
        assert!(
            text.starts_with(&format!(r#"{{"op":"{op}","row":["#)),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<RowChange<_>>(&text).unwrap(), change);
        let bytes = postcard::to_stdvec(&change).unwrap();
        // The kind takes one byte between ranks.
        let row = postcard::to_stdvec(change.row()).unwrap();
        assert_eq!(bytes[1..], row);
        assert_eq!(
            postcard::from_bytes::<RowChange<_>>(&bytes).unwrap(),
            change
        );
    }
}

#[test]
fn json_of_another_kind_is_refused() {
    let refused = |text: &str| serde_json::from_str::<RowChange<u64>>(text).is_err();
    assert!(!refused(r#"{"row":1,"op":"+I"}"#));
    assert!(refused(r#"{"op":"+X","row":1}"#) && refused(r#"{"op":"+I"}"#) && refused("1"));
}

#[test]
fn weights_and_upserts_follow_the_kind() {
    let weights = changes().each_ref().map(RowChange::weight);
    assert_eq!(weights, [1, -1, 1, -1]);
    let rows = changes().map(|change| change.map(|(number, _)| number).into_upsert());
    let upserts = [
        Some(Upsert::Put(1)),
        None,
        Some(Upsert::Put(300)),
        Some(Upsert::Delete(4)),
    ];
    assert_eq!(rows, upserts);
}
