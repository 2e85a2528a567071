//! Replays the corpora of the fuzz targets (`fuzz/corpus`) with what the targets check.

#[path = "../../fuzz/src/checks.rs"]
#[expect(clippy::expect_used, reason = "a check fails by panicking")]
mod checks;

use std::path::Path;

type Check = fn(&[u8]);

const TARGETS: [(&str, Check); 8] = [
    ("strict", checks::strict),
    ("proxy_protocol", checks::proxy_protocol),
    ("path", checks::path),
    ("config", checks::config),
    ("forwarded", checks::forwarded),
    ("orca", checks::orca),
    ("deadline", checks::deadline),
    ("traceparent", checks::traceparent),
];

#[test]
fn every_corpus_passes() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    for (target, check) in TARGETS {
        let mut files = 0;
        for entry in std::fs::read_dir(fuzz.join("corpus").join(target)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            check(&std::fs::read(path).unwrap());
            files += 1;
        }
        assert!(files >= 5, "{target}: {files}");
        assert!(fuzz.join("fuzz_targets").join(format!("{target}.rs")).exists(), "{target}");
    }
    let targets = std::fs::read_dir(fuzz.join("fuzz_targets")).unwrap().count();
    assert_eq!(targets, TARGETS.len(), "each target is replayed here");
}
