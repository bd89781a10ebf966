//! The list of public fault reports and the tests named after them: each number has a test or a reason why not.

use crate::figures::Figure;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    all: BTreeSet<u32>,
    without_test: BTreeMap<String, String>,
}

/// Numbers of the tests in a piece of source: `fn bug_027_...`, with every further `_bug_028_` in the same name.
fn tested(text: &str) -> BTreeSet<u32> {
    let names = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split('(').next());
    let tests = names.filter(|name| name.starts_with("bug_"));
    tests.flat_map(|name| name.split("bug_").filter_map(|part| part.get(..3)?.parse().ok())).collect()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let is_source = |entry: &walkdir::DirEntry| entry.path().extension().is_some_and(|e| e == "rs");
    walkdir::WalkDir::new(dir)
        .into_iter()
        .map(Result::unwrap)
        .filter(is_source)
        .map(|e| e.into_path())
        .collect()
}

#[test]
fn bugs_in_names_are_found() {
    let text = "    #[test]\n    fn bug_034_bug_035_markers() {}\nfn bug_7() {}\nfn other_bug_001() {}\n// fn bug_002_x()";
    assert_eq!(tested(text), BTreeSet::from([34, 35]));
}

/// Goal: nothing on the list is forgotten. Method: every number has a test of its name or a reason, and not both; no test
/// has a number that is not on the list.
#[test]
fn bugs_each_have_a_test_or_a_reason() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let list: List = toml::from_str(&std::fs::read_to_string(root.join("tests/bugs.toml")).unwrap()).unwrap();
    let files: Vec<_> = ["src", "tests"].iter().flat_map(|dir| sources(&root.join(dir))).collect();
    let mut have = BTreeSet::new();
    for file in files {
        have.extend(tested(&std::fs::read_to_string(file).unwrap()));
    }
    let reasons: BTreeSet<u32> = list.without_test.keys().map(|number| number.parse().unwrap()).collect();
    let missing: Vec<_> = list.all.iter().filter(|n| !have.contains(n) && !reasons.contains(n)).collect();
    let both: Vec<_> = have.intersection(&reasons).collect();
    let unknown: Vec<_> = have.union(&reasons).filter(|n| !list.all.contains(n)).collect();
    let bad = missing.len() + both.len() + unknown.len();
    println!("bugs: {} of {} automated, {} with a reason why not", have.len(), list.all.len(), reasons.len());
    Figure::new(
        "R30",
        "public fault reports with neither a test nor a reason",
        list.all.len() as u64,
        bad as u64,
    )
    .more("automated", have.len() as f64, "reports")
    .note(&list.without_test.iter().map(|(n, why)| format!("{n}: {why}")).collect::<Vec<_>>().join("; "))
    .report();
    assert!(list.without_test.values().all(|why| why.len() > 10), "a reason for each");
    assert_eq!(bad, 0, "missing {missing:?}, with a test and a reason {both:?}, not on the list {unknown:?}");
}
