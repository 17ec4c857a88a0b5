//! Results files: what is refused and how it is said, what is kept, and that nothing panics.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use lacuna_boxes::{Box2, Detection, Score};
use lacuna_data::results::{Entry, Results, Rewrite};
use lacuna_data::{Builder, Dataset, Xywh, coco};
use proptest::prelude::*;
use serde_json::Value;

const GT: &str = r#"{
  "images": [
    {"id": 7, "file_name": "a.png", "width": 40, "height": 30},
    {"id": 3, "file_name": "b.png", "width": 20, "height": 50},
    {"id": 9, "file_name": "c.png", "width": 33, "height": 33}
  ],
  "annotations": [],
  "categories": [{"id": 1, "name": "person"}, {"id": 90, "name": "tooth brush"}]
}"#;

/// Everything odd that real ones have: whole floats, further fields, scores that tie, empty boxes.
const DETS: &str = r#"[
  {"image_id": 7, "category_id": 90, "bbox": [1, 2.5, 10, 20], "score": 0.25},
  {"score": 1, "image_id": 3.0, "bbox": [0.1, 0.2, 0.30000000000000004, 5e0], "category_id": 1.0,
   "segmentation": {"size": [50, 20], "counts": "}{\"]["}, "id": 12},
  {"image_id": 7, "category_id": 1, "bbox": [-3, 4, 0, 20], "score": 0.5, "confidence": 0.75, "model": "x"},
  {"image_id": 7, "category_id": 1, "bbox": [30, 20, 20, 20], "score": 0.5, "confidence": null },
  {"image_id": 7, "category_id": 90, "bbox": [1.0, 25e-1, 1e1, 20], "score": 0.250, "twice": true}
]"#;

fn dataset() -> Dataset {
    coco::parse(GT.into(), Path::new("gt.json")).unwrap()
}

fn parse(text: &str) -> lacuna_data::Result<Results> {
    Results::parse(text.into(), Path::new("dets.json"), &dataset())
}

fn written(results: &Results, rewrite: impl Fn(usize) -> Rewrite) -> String {
    let mut out = Vec::new();
    results.write(&mut out, rewrite).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn ids_are_mapped_to_indices_in_the_files_order() {
    let results = parse(DETS).unwrap();
    let found: Vec<_> = results.entries().iter().map(|e| (e.image, e.class, e.score, e.confidence)).collect();
    let wanted = [
        (0, 1, 0.25, None),
        (1, 0, 1.0, None),
        (0, 0, 0.5, Some(0.75)),
        (0, 0, 0.5, None),
        (0, 1, 0.25, None),
    ];
    assert_eq!(found, wanted);
    let exact = Xywh { x: 0.1, y: 0.2, width: 0.30000000000000004, height: 5.0 };
    assert_eq!(results.entries()[1].bbox, exact);
}

#[test]
fn a_file_is_read_as_memory_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dets.json");
    fs::write(&path, format!("\u{feff}{DETS}")).unwrap();
    assert_eq!(Results::read(&path, &dataset()).unwrap().entries(), parse(DETS).unwrap().entries());
    let absent = Results::read(Path::new("no such.json"), &dataset()).unwrap_err();
    assert!(absent.to_string().starts_with("cannot read no such.json"), "{absent}");
}

#[test]
fn a_list_may_be_empty() {
    for text in ["[]", " [\n]\n"] {
        let results = parse(text).unwrap();
        assert!(results.entries().is_empty());
        assert_eq!(results.detections(), vec![vec![]; 3]);
        assert_eq!(parse(&written(&results, |_| Rewrite::default())).unwrap().entries(), []);
    }
}

#[test]
fn detections_of_an_image_come_best_first_and_ties_in_the_files_order() {
    let found = parse(DETS).unwrap().detections();
    let indices: Vec<Vec<usize>> =
        found.iter().map(|of| of.iter().map(|(index, _)| *index).collect()).collect();
    assert_eq!(indices, [vec![2, 3, 0, 4], vec![1], vec![]]);
    // A box without width is kept.
    let empty = Detection { bbox: Box2::new(-3.0, 4.0, -3.0, 24.0), class: 0, score: Score(0.5) };
    assert_eq!(found[0][0].1, empty);

    // Two scores that are one in f32 are still in order.
    let close = r#"[{"image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 0.7000000000000001},
                    {"image_id": 9, "category_id": 1, "bbox": [0, 0, 2, 2], "score": 0.7000000000000002}]"#;
    assert_eq!(parse(close).unwrap().detections()[2].iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn exact_repeats_are_accepted_and_found() {
    assert_eq!(parse(DETS).unwrap().duplicates(), [(0, 4)]);
    let one = r#"{"image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 0.5}"#;
    let signed = one.replace("[0, 0,", "[-0.0, 0,");
    let other = one.replace("0.5", "0.5000000000000001");
    let results = parse(&format!("[{other}, {one}, {signed}, {other}, {one}]")).unwrap();
    assert_eq!(results.duplicates(), [(1, 2), (0, 3), (1, 4)]);
}

#[test]
fn all_but_the_two_numbers_is_written_as_it_was() {
    let results = parse(DETS).unwrap();
    let untouched = written(&results, |_| Rewrite::default());
    let lines = [r#"[
{"image_id": 7, "category_id": 90, "bbox": [1, 2.5, 10, 20], "score": 0.25},
{"score": 1, "image_id": 3.0, "bbox": [0.1, 0.2, 0.30000000000000004, 5e0], "category_id": 1.0,
   "segmentation": {"size": [50, 20], "counts": "}{\"]["}, "id": 12},
{"image_id": 7, "category_id": 1, "bbox": [-3, 4, 0, 20], "score": 0.5, "confidence": 0.75, "model": "x"},
{"image_id": 7, "category_id": 1, "bbox": [30, 20, 20, 20], "score": 0.5, "confidence": null },
{"image_id": 7, "category_id": 90, "bbox": [1.0, 25e-1, 1e1, 20], "score": 0.250, "twice": true}
]
"#];
    assert_eq!(untouched, lines[0]);

    let confident = written(&results, |index| Rewrite {
        confidence: (index != 4).then_some(0.1 * index as f64),
        score: (index == 1).then_some(f64::from(0.7f32)),
    });
    assert_eq!(
        confident,
        r#"[
{"image_id": 7, "category_id": 90, "bbox": [1, 2.5, 10, 20], "score": 0.25, "confidence": 0.0},
{"score": 0.699999988079071, "image_id": 3.0, "bbox": [0.1, 0.2, 0.30000000000000004, 5e0], "category_id": 1.0,
   "segmentation": {"size": [50, 20], "counts": "}{\"]["}, "id": 12, "confidence": 0.1},
{"image_id": 7, "category_id": 1, "bbox": [-3, 4, 0, 20], "score": 0.5, "confidence": 0.2, "model": "x"},
{"image_id": 7, "category_id": 1, "bbox": [30, 20, 20, 20], "score": 0.5, "confidence": 0.30000000000000004 },
{"image_id": 7, "category_id": 90, "bbox": [1.0, 25e-1, 1e1, 20], "score": 0.250, "twice": true}
]
"#
    );
}

#[test]
fn only_fields_of_the_entry_itself_are_rewritten() {
    // Fields of the same name deeper down and in strings, an escaped name, the order turned round, and
    // space before the brace.
    let text = r#"[{"more": {"score": 9, "confidence": 9}, "confidence": 1, "s": "\"score\": 3",
        "sc\u006fre": 0.5, "image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1]
    }]"#;
    let results = parse(text).unwrap();
    assert_eq!((results.entries()[0].score, results.entries()[0].confidence), (0.5, Some(1.0)));
    let out = written(&results, |_| Rewrite { score: Some(0.125), confidence: Some(0.25) });
    let wanted = text.replace("\"confidence\": 1,", "\"confidence\": 0.25,").replace(": 0.5", ": 0.125");
    assert_eq!(out, format!("[\n{}\n]\n", &wanted[1..wanted.len() - 1]));

    let without = text.replace("\"confidence\": 1, ", "");
    let out =
        written(&parse(&without).unwrap(), |_| Rewrite { confidence: Some(0.25), ..Rewrite::default() });
    assert!(out.contains("\"bbox\": [0, 0, 1, 1], \"confidence\": 0.25\n    }\n]"), "{out}");
}

#[test]
fn what_is_no_detection_is_refused_with_the_place() {
    let change = |from: &str, to: &str| {
        assert!(DETS.contains(from), "{from}");
        DETS.replacen(from, to, 1)
    };
    let last = |from: &str, to: &str| {
        let at = DETS.rfind(from).unwrap();
        format!("{}{to}{}", &DETS[..at], &DETS[at + from.len()..])
    };
    let until = |text: &str| DETS[..DETS.find(text).unwrap()].to_owned();
    let whole = "it must be a whole number, neither negative nor above 2^53";
    let four = "it must be four numbers: x, y, width, height";
    let third = |problem: &str| format!("dets.json:5: detection 2 {problem}");
    let fourth = |problem: &str| format!("dets.json:6: detection 3 {problem}");
    let not_results = |reason: &str| format!("dets.json is not a COCO results file: {reason}");
    let cases = [
        (String::new(), not_results("it is empty")),
        ("\u{feff} \n ".into(), not_results("it is empty")),
        (GT.into(), not_results("it is an annotation file")),
        ("{}".into(), not_results("it is an object")),
        (format!("{{\"predictions\": {DETS}}}"), not_results("it is an object")),
        ("{\"images\": [".into(), not_results("it is an object")),
        ("3".into(), not_results("it is a single value")),
        ("null".into(), not_results("it is a single value")),
        ("nothing".into(), "dets.json:1: not JSON: expected ident".into()),
        ("<xml/>".into(), "dets.json:1: not JSON: a JSON list should be here, not `<`".into()),
        ("[".into(), "dets.json:1: the file ends where an object should be".into()),
        ("[3]".into(), "dets.json:1: detection 0 is not an object".into()),
        ("[[]]".into(), "dets.json:1: detection 0 is not an object".into()),
        (until("segmentation"), "dets.json:4: the file ends in the middle of detection 1".into()),
        (until(",\n  {\"score\""), "dets.json:2: the file ends where `,` or `]` should be".into()),
        (until("\n]"), "dets.json:7: the file ends where `,` or `]` should be".into()),
        (format!("{DETS}\n[]"), "dets.json:9: not JSON: the end of the file should be here, not `[`".into()),
        (
            change("20], \"score\": 0.5, \"confidence\": 0.75", "20], \"score\" 0.5"),
            third("is not JSON: expected `:`"),
        ),
        (
            last("\"image_id\": 7, \"category_id\": 1", "\"image_id\": 42, \"category_id\": 1"),
            fourth("is of image 42, which the annotations do not have"),
        ),
        (
            last("\"category_id\": 1,", "\"category_id\": 2,"),
            fourth("is of category 2, which the annotations do not have"),
        ),
        (
            last("\"image_id\": 7, \"category_id\": 1,", "\"image_id\": \"7\", \"category_id\": 1,"),
            fourth(&format!("has `image_id` \"7\"; {whole}")),
        ),
        (
            last("\"image_id\": 7, \"category_id\": 1,", "\"image_id\": 7.5, \"category_id\": 1,"),
            fourth(&format!("has `image_id` 7.5; {whole}")),
        ),
        (
            last("\"image_id\": 7, \"category_id\": 1,", "\"image_id\": -7, \"category_id\": 1,"),
            fourth(&format!("has `image_id` -7; {whole}")),
        ),
        (last("\"image_id\": 7, \"category_id\": 1,", "\"category_id\": 1,"), fourth("has no `image_id`")),
        (
            last("\"category_id\": 1,", "\"category_id\": null,"),
            fourth(&format!("has `category_id` null; {whole}")),
        ),
        (last("\"category_id\": 1,", ""), fourth("has no `category_id`")),
        (change("0.75", "1.5"), third("has `confidence` 1.5; it must be from 0 to 1")),
        (change("0.75", "-1e-9"), third("has `confidence` -0.000000001; it must be from 0 to 1")),
        (change("0.75", "\"0.75\""), third("has `confidence` \"0.75\"; it must be a number")),
        (change("\"score\": 0.5, ", "\"score\": 37.5, "), third("has `score` 37.5; it must be from 0 to 1")),
        (change("\"score\": 0.5, ", "\"score\": -2, "), third("has `score` -2; it must be from 0 to 1")),
        (
            change("\"score\": 0.5, ", "\"score\": 1.0000000000000002, "),
            third("has `score` 1.0000000000000002; it must be from 0 to 1"),
        ),
        (
            change("\"score\": 0.5, ", "\"score\": \"0.5\", "),
            third("has `score` \"0.5\"; it must be a number"),
        ),
        (change("\"score\": 0.5, ", "\"score\": null, "), third("has `score` null; it must be a number")),
        (change("\"score\": 0.5, ", "\"score\": [0.5], "), third("has `score` [0.5]; it must be a number")),
        (change("\"score\": 0.5, ", ""), third("has no `score`")),
        (
            change("\"score\": 0.5, ", "\"score\": 0.5, \"score\": 0.6, "),
            third("has a field that cannot be read, or one that is there twice"),
        ),
        (change("\"score\": 0.5, ", "\"score\": NaN, "), third("is not JSON: `NaN` is not a number of JSON")),
        (
            change("\"score\": 0.5, ", "\"score\": Infinity, "),
            third("is not JSON: `Infinity` is not a number of JSON"),
        ),
        (
            change("\"score\": 0.5, ", "\"score\": -Infinity, "),
            third("is not JSON: `-Infinity` is not a number of JSON"),
        ),
        (change("0.75", "NaN"), third("is not JSON: `NaN` is not a number of JSON")),
        (change("[-3, 4, 0, 20]", "[-3, NaN, 0, 20]"), third("is not JSON: `NaN` is not a number of JSON")),
        (change("\"x\"", "NaN"), third("is not JSON: `NaN` is not a number of JSON")),
        (change("[-3, 4, 0, 20]", "[-3, 4, 1e999, 20]"), third("is not JSON: number out of range")),
        (
            change("[-3, 4, 0, 20]", "[-3, 4, 1e39, 20]"),
            third("has a `bbox` beyond any image: [-3.0, 4.0, 1e39, 20.0]"),
        ),
        (change("[-3, 4, 0, 20]", "[-3, 4, 0]"), third(&format!("has `bbox` [-3,4,0]; {four}"))),
        (change("[-3, 4, 0, 20]", "[-3, 4, 0, 20, 0]"), third(&format!("has `bbox` [-3,4,0,20,0]; {four}"))),
        (change("[-3, 4, 0, 20]", "[-3, 4, null, 20]"), third(&format!("has `bbox` [-3,4,null,20]; {four}"))),
        (change("[-3, 4, 0, 20]", "{\"x\": 3}"), third(&format!("has `bbox` {{\"x\":3}}; {four}"))),
        (
            change("[-3, 4, 0, 20]", "[-3, 4, 0, -20]"),
            third("has a `bbox` of negative size: [-3.0, 4.0, 0.0, -20.0]"),
        ),
        (
            change("[-3, 4, 0, 20]", "[-3, 4, -1e-9, 20]"),
            third("has a `bbox` of negative size: [-3.0, 4.0, -1e-9, 20.0]"),
        ),
        (change("\"bbox\": [-3, 4, 0, 20], ", ""), third("has no `bbox`; lacuna judges boxes")),
        (change("[-3, 4, 0, 20]", "null"), third("has no `bbox`; lacuna judges boxes")),
        (
            change("\"bbox\": [-3, 4, 0, 20]", "\"segmentation\": {\"size\": [30, 40], \"counts\": \"x\"}"),
            third("has `segmentation` but no `bbox`; lacuna judges boxes"),
        ),
        (
            change("\"bbox\": [-3, 4, 0, 20]", "\"keypoints\": [1, 2, 3]"),
            third("has `keypoints` but no `bbox`; lacuna judges boxes"),
        ),
    ];
    let found = cases.map(|(text, wanted)| (parse(&text).map(drop).map_err(|e| e.to_string()), wanted));
    let wrong: Vec<_> = found.iter().filter(|(found, wanted)| found.as_ref() != Err(wanted)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let broken = Results::parse(b"[\n{\"a\": \"\xff\"}]".to_vec(), Path::new("dets.json"), &dataset());
    assert_eq!(broken.unwrap_err().to_string(), "dets.json:2: not JSON: the text is not UTF-8");
}

#[test]
fn of_several_faults_the_first_is_reported() {
    let text = DETS.replace("0.5", "5").replace("[1.0, 25e-1", "[NaN, 25e-1");
    assert!(parse(&text).unwrap_err().to_string().starts_with("dets.json:5: detection 2 has `score` 5"));
}

#[test]
fn a_refusal_says_what_to_do() {
    let hint = |from: &str, to: &str| parse(&DETS.replacen(from, to, 1)).unwrap_err().hint();
    let logits = "are these logits or percentages? put logits through a sigmoid, divide percentages by 100";
    assert_eq!(hint("0.25", "37.5").unwrap(), logits);
    assert_eq!(hint("0.75", "37.5"), None);
    assert!(hint("\"image_id\": 7", "\"image_id\": 8").unwrap().contains("`id` of an image"));
    assert!(hint("\"image_id\": 7", "\"image_id\": \"a.png\"").unwrap().contains("not the name of its file"));
    assert!(hint("\"category_id\": 90", "\"category_id\": 0").unwrap().contains("not the class number"));
    assert!(parse(GT).unwrap_err().hint().unwrap().contains("one JSON list of objects"));
}

/// A data set of so many images, with ids from 1, and three classes.
fn of_size(n_images: usize) -> Dataset {
    let mut builder = Builder::default();
    for name in ["a", "b", "c"] {
        builder.category(name);
    }
    for n in 0..n_images {
        builder.image(&format!("{n}.jpg"), 640, 480);
    }
    builder.finish()
}

#[test]
fn a_hundred_thousand_detections_keep_their_order() {
    const N: usize = 100_000;
    let dataset = of_size(1000);
    // A stride that is coprime to the number of images scatters them.
    let line = |n: usize| {
        let (image, class, score) = (n * 7919 % 1000 + 1, n % 3 + 1, (n * 31 % 997) as f64 / 997.0);
        format!(
            r#"{{"image_id": {image}, "category_id": {class}, "bbox": [{n}, 1, 2.5, 3], "score": {score}, "n": {n}}}"#
        )
    };
    let lines: Vec<String> = (0..N).map(line).collect();
    let text = format!("[{}]", lines.join(", "));
    let results = Results::parse(text.into(), Path::new("many.json"), &dataset).unwrap();
    assert!(
        results.entries().iter().enumerate().all(|(n, e)| e.bbox.x == n as f64 && e.image == n * 7919 % 1000)
    );
    let of_images = results.detections();
    assert_eq!(of_images.iter().map(Vec::len).sum::<usize>(), N);
    let key = |&(index, _): &(usize, Detection)| (-results.entries()[index].score, index);
    assert!(of_images.iter().all(|of| of.is_sorted_by(|a, b| key(a) < key(b))));
    assert!(results.duplicates().is_empty());
    let out = written(&results, |_| Rewrite::default());
    assert!(out.lines().skip(1).zip(&lines).all(|(found, wanted)| found.trim_end_matches(',') == wanted));
}

/// An entry of the data set above, and its text with further fields around the known ones.
fn any_entry() -> impl Strategy<Value = (Entry, String)> {
    let unit = || prop_oneof![Just(0.0), Just(1.0), 0.0..=1.0f64];
    let side = || prop_oneof![Just(0.0), 0.0..1e4f64, Just(1e-300)];
    let known = (
        0..3usize,
        0..3usize,
        (-1e4..1e4f64, -1e4..1e4f64, side(), side()),
        unit(),
        prop::option::of(unit()),
    );
    let further = prop::collection::btree_map("x[a-z\"\\\\{}\\[\\]é ]{1,6}", any_json(), 0..4);
    let order = any::<u64>();
    (known, further, order).prop_map(
        |((image, class, (x, y, width, height), score, confidence), further, seed)| {
            let entry = Entry { image, class, bbox: Xywh { x, y, width, height }, score, confidence };
            let mut fields: Vec<(String, Value)> = further.into_iter().collect();
            fields.push(("image_id".into(), (image + 1).into()));
            fields.push(("category_id".into(), (class + 1).into()));
            fields.push(("bbox".into(), vec![x, y, width, height].into()));
            fields.push(("score".into(), score.into()));
            fields.extend(confidence.map(|c| ("confidence".into(), c.into())));
            let at = (seed % fields.len() as u64) as usize;
            fields.rotate_left(at);
            let fields = fields.iter().map(|(name, value)| format!("{}:{value}", Value::from(name.clone())));
            (entry, format!("{{{}}}", fields.collect::<Vec<_>>().join([",", ", ", " ,\n\t"][at % 3])))
        },
    )
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[\"\\\\{}\\[\\]:,score ]{0,9}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let key = prop_oneof![Just("score".to_owned()), Just("confidence".to_owned()), "[a-z]{1,3}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn without_numbers(text: &str) -> Vec<Value> {
    let mut list: Vec<Value> = serde_json::from_str(text).unwrap();
    for entry in &mut list {
        entry.as_object_mut().unwrap().retain(|key, _| key != "score" && key != "confidence");
    }
    list
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_is_written_reads_back(
        generated in prop::collection::vec(any_entry(), 0..8),
        rewrites in prop::collection::vec((prop::option::of(0.0..=1.0f64), prop::option::of(0.0..=1.0f64)), 8),
    ) {
        let (dataset, path) = (of_size(3), Path::new("x"));
        let texts: Vec<&str> = generated.iter().map(|(_, text)| text.as_str()).collect();
        let text = format!("[{}]", texts.join(","));
        let results = Results::parse(text.clone().into(), path, &dataset).unwrap();
        let entries: Vec<Entry> = generated.iter().map(|(entry, _)| *entry).collect();
        prop_assert_eq!(results.entries(), &entries);

        let rewrite = |n: usize| Rewrite { score: rewrites[n].0, confidence: rewrites[n].1 };
        let out = written(&results, rewrite);
        let again = Results::parse(out.clone().into(), path, &dataset).unwrap();
        let wanted: Vec<Entry> = entries.iter().enumerate().map(|(n, entry)| Entry {
            score: rewrites[n].0.unwrap_or(entry.score),
            confidence: rewrites[n].1.or(entry.confidence),
            ..*entry
        }).collect();
        prop_assert_eq!(again.entries(), &wanted);
        prop_assert_eq!(without_numbers(&out), without_numbers(&text));
        // To write what was written changes nothing.
        prop_assert_eq!(written(&again, rewrite), out);
    }

    #[test]
    fn duplicates_are_those_that_a_naive_search_finds(picks in prop::collection::vec((0..2u8, 0..2u8, 0..2u8), 0..12)) {
        let line = |&(image, x, score): &(u8, u8, u8)| {
            format!(r#"{{"image_id": {}, "category_id": 1, "bbox": [{x}, 0, 1, 1], "score": {score}}}"#, image + 1)
        };
        let text = format!("[{}]", picks.iter().map(line).collect::<Vec<_>>().join(","));
        let results = Results::parse(text.into(), Path::new("x"), &of_size(2)).unwrap();
        let first = |n: usize| picks[..n].iter().position(|pick| *pick == picks[n]);
        let naive: Vec<_> = (0..picks.len()).filter_map(|n| first(n).map(|first| (first, n))).collect();
        prop_assert_eq!(results.duplicates(), naive);
    }

    #[test]
    fn no_damage_makes_the_reader_panic(edits in prop::collection::vec((0..DETS.len(), 0..6usize, any::<Vec<u8>>()), 1..4)) {
        let mut text = DETS.as_bytes().to_vec();
        for (at, len, patch) in edits {
            let start = at.min(text.len());
            let end = (start + len).min(text.len());
            text.splice(start..end, patch.into_iter().take(5));
        }
        if let Ok(results) = Results::parse(text, Path::new("x"), &dataset()) {
            let _ = (results.detections(), results.duplicates());
            let out = written(&results, |_| Rewrite { score: Some(0.5), confidence: Some(0.25) });
            prop_assert!(parse(&out).is_ok());
        }
    }
}
