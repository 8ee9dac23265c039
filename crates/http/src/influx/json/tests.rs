use super::*;
use proptest::prelude::*;
use std::sync::Arc;

fn all(answers: Vec<Answer>, shape: Shape) -> String {
    let mut document = Document::new(answers, shape);
    let mut text = Vec::new();
    loop {
        let mut piece = Vec::new();
        let more = document.fill(&mut piece);
        text.extend_from_slice(&piece);
        if !more {
            return String::from_utf8(text).unwrap();
        }
    }
}

fn table(name: &str, tags: &[(&str, &str)], rows: Vec<Vec<Cell>>) -> Table {
    Table {
        name: Some(name.to_owned()),
        tags: tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        columns: vec!["time".to_owned(), "value".to_owned()],
        rows: rows.into_iter().map(Into::into).collect(),
    }
}

fn rows(count: i64) -> Vec<Vec<Cell>> {
    (0..count).map(|at| vec![Cell::Time(at * 1_000_000_000), Cell::Integer(at)]).collect()
}

fn answer(statement: usize, tables: Vec<Table>) -> Answer {
    Answer { statement, outcome: Ok(tables) }
}

#[test]
fn floats_are_those_of_go() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (1e-6, "0.000001"),
        (9.99e-7, "9.99e-7"),
        (5e-324, "5e-324"),
        (f64::MAX, "1.7976931348623157e+308"),
        (f64::NAN, "null"),
    ] {
        let mut out = Vec::new();
        float(value, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}

#[test]
fn strings_are_escaped_as_go_does() {
    for (text, json) in [
        ("plain ü", r#""plain ü""#),
        ("a\"b\\c", r#""a\"b\\c""#),
        ("\n\r\t\u{1}", r#""\n\r\t\u0001""#),
        ("<a&b>", r#""\u003ca\u0026b\u003e""#),
        ("\u{2028}…\u{2029}€", r#""\u2028…\u2029€""#),
        ("", r#""""#),
    ] {
        let mut out = Vec::new();
        string(text, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), json);
    }
}

#[test]
fn answers_have_the_shape_of_influxdb() {
    assert_eq!(all(vec![], Shape::default()), "{}\n");
    let none = vec![answer(0, vec![])];
    assert_eq!(all(none, Shape::default()), "{\"results\":[{\"statement_id\":0}]}\n");
    let failed = Answer { statement: 1, outcome: Err("database not found: x".to_owned()) };
    let cells = vec![
        Cell::Time(1),
        Cell::Float(1.5),
        Cell::Unsigned(u64::MAX),
        Cell::Boolean(true),
        Cell::Null,
        Cell::String(Arc::from("a<b")),
    ];
    let one = answer(0, vec![table("cpu", &[("host", "a"), ("zone", "")], vec![cells])]);
    assert_eq!(
        all(vec![one, failed], Shape::default()),
        "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"cpu\",\"tags\":{\"host\":\"a\",\"zone\":\"\"},\
         \"columns\":[\"time\",\"value\"],\"values\":[[\"1970-01-01T00:00:00.000000001Z\",1.5,18446744073709551615,true,null,\
         \"a\\u003cb\"]]}]},{\"statement_id\":1,\"error\":\"database not found: x\"}]}\n"
    );
}

#[test]
fn epochs_are_numbers() {
    let shape = Shape { epoch: Some(Unit::of("ms")), ..Shape::default() };
    let text = all(vec![answer(0, vec![table("m", &[], rows(2))])], shape);
    assert!(text.contains("\"values\":[[0,0],[1000,1]]"), "{text}");
}

#[test]
fn pretty_is_gos_indent() {
    let shape = Shape { pretty: true, ..Shape::default() };
    let text = all(vec![answer(0, vec![table("m", &[], rows(1))]), answer(1, vec![])], shape);
    let expected = r#"{
    "results": [
        {
            "statement_id": 0,
            "series": [
                {
                    "name": "m",
                    "columns": [
                        "time",
                        "value"
                    ],
                    "values": [
                        [
                            "1970-01-01T00:00:00Z",
                            0
                        ]
                    ]
                }
            ]
        },
        {
            "statement_id": 1
        }
    ]
}
"#;
    assert_eq!(text, expected);
}

#[test]
fn chunks_say_that_there_is_more() {
    let shape = Shape { chunk: Some(2), epoch: Some(Unit::of("s")), ..Shape::default() };
    let tables = vec![table("m", &[("t", "a")], rows(3)), table("m", &[("t", "b")], rows(2))];
    let text = all(vec![answer(0, tables), answer(1, vec![])], shape);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].ends_with("\"values\":[[0,0],[1,1]],\"partial\":true}],\"partial\":true}]}"));
    assert!(lines[1].ends_with("\"values\":[[2,2]]}],\"partial\":true}]}"), "{text}");
    assert!(
        lines[2].ends_with(
            "{\"t\":\"b\"},\"columns\":[\"time\",\"value\"],\"values\":[[0,0],[1,1]]}]}]}"
        )
    );
    assert_eq!(lines[3], "{\"results\":[{\"statement_id\":1}]}");
}

#[test]
fn rows_beyond_the_limit_are_cut_off() {
    let tables = |first| vec![table("m", &[], rows(first)), table("n", &[], rows(2))];
    let shape = Shape { rows_max: 2, epoch: Some(Unit::of("s")), ..Shape::default() };
    let text = all(vec![answer(0, tables(3)), answer(1, tables(1))], shape);
    assert!(text.ends_with("\"values\":[[0,0],[1,1]],\"partial\":true}]}]}\n"), "{text}");
    let text = all(vec![answer(0, tables(1))], shape);
    assert!(text.ends_with("\"values\":[[0,0]],\"partial\":true}]}]}\n"), "{text}");
    let all_of_it = Shape { rows_max: 3, ..shape };
    assert!(!all(vec![answer(0, tables(1))], all_of_it).contains("partial"));
}

#[test]
fn long_answers_come_in_pieces() {
    let mut document = Document::new(
        vec![answer(0, vec![table("m", &[], rows(50_000))])],
        Shape { epoch: Some(Unit::of("ns")), ..Shape::default() },
    );
    let (mut pieces, mut text) = (0, Vec::new());
    loop {
        let mut piece = Vec::new();
        let more = document.fill(&mut piece);
        assert!(piece.len() < PIECE + 200, "{}", piece.len());
        pieces += 1;
        text.extend_from_slice(&piece);
        if !more {
            break;
        }
    }
    assert!(pieces > 10);
    let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let values = text["results"][0]["series"][0]["values"].as_array().unwrap();
    assert_eq!((values.len(), values[49_999][1].as_i64()), (50_000, Some(49_999)));
}

proptest! {
    /// As short as any text that reads the same.
    #[test]
    fn a_float_is_the_shortest_text_that_reads_the_same(bits in any::<u64>(), of in -400_i32..400) {
        let values = [f64::from_bits(bits), f64::from(of) / 8.0, f64::from(of) * 1e18, -0.0];
        for value in values.into_iter().filter(|it| it.is_finite()) {
            let text = float_text(value);
            prop_assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok(value.to_bits()));
            if value == 0.0 || (1e-6..1e21).contains(&value.abs()) {
                prop_assert_eq!(text.len(), value.to_string().len());
            }
        }
    }
}

fn float_text(value: f64) -> String {
    let mut out = Vec::new();
    float(value, &mut out);
    String::from_utf8(out).expect("text")
}

/// Of two shortest texts that are equally near, Go takes the even one (strconv, Go 1.26), Rust the greater.
#[test]
fn a_float_between_two_texts_is_as_in_go() {
    for (whole, part, expected) in [
        (1e14, 0.125, "100000000000000.12"),
        (1e14, 0.375, "100000000000000.38"),
        (1e14, 0.625, "100000000000000.62"),
        (1_125_899_906_842_624.0, 0.25, "1125899906842624.2"),
        (1_125_899_906_842_624.0, 0.75, "1125899906842624.8"),
        (562_949_953_421_312.0, 0.25, "562949953421312.2"),
    ] {
        assert_eq!(float_text(whole + part), expected);
    }
}
