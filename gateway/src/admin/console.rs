//! The console: pages for a browser that use the admin API as any other client does. They are files of this repository,
//! embedded in the binary as they are, and hold no data of the gateway.

use std::sync::LazyLock;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, REFERRER_POLICY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use xxhash_rust::xxh3::xxh3_64;

use super::State;

/// Where the console is.
const HOME: &str = "/console/";
/// Paths that lead there.
const WAYS_HOME: [&str; 2] = ["/", "/console"];

/// What a page may load and run: files of the console and nothing else; no markup or script can be made of text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the console.
struct Asset {
    path: &'static str,
    kind: &'static str,
    body: &'static str,
}

macro_rules! assets {
    ($($path:literal $kind:ident $file:literal)*) => {
        &[$(Asset { path: $path, kind: $kind, body: include_str!(concat!("../console/", $file)) }),*]
    };
}

/// All files: what may be had without a token, by exact path.
const ASSETS: &[Asset] = assets! {
    "/console/" HTML "index.html"
    "/console/style.css" CSS "style.css"
    "/console/charts.css" CSS "charts.css"
    "/console/favicon.svg" SVG "favicon.svg"
    "/console/api.js" JS "api.js"
    "/console/app.js" JS "app.js"
    "/console/chart.js" JS "chart.js"
    "/console/dialogs.js" JS "dialogs.js"
    "/console/diff.js" JS "diff.js"
    "/console/dom.js" JS "dom.js"
    "/console/explain.js" JS "explain.js"
    "/console/format.js" JS "format.js"
    "/console/history.js" JS "history.js"
    "/console/instances.js" JS "instances.js"
    "/console/live.js" JS "live.js"
    "/console/overview.js" JS "overview.js"
    "/console/ramps.js" JS "ramps.js"
    "/console/service.js" JS "service.js"
    "/console/shell.js" JS "shell.js"
    "/console/state.js" JS "state.js"
    "/console/switches.js" JS "switches.js"
    "/console/theme.js" JS "theme.js"
    "/console/way.js" JS "way.js"
    "/console/weights.js" JS "weights.js"
};

/// Their entity tags, in the same order.
static TAGS: LazyLock<Vec<String>> =
    LazyLock::new(|| ASSETS.iter().map(|asset| format!("\"{:016x}\"", xxh3_64(asset.body.as_bytes()))).collect());

/// Whether a path is one of the console's. This is a constant list: nothing behind it says anything about the gateway.
pub(super) fn is_console(path: &str) -> bool {
    WAYS_HOME.contains(&path) || ASSETS.iter().any(|asset| asset.path == path)
}

/// Adds the console.
pub(super) fn routes(mut router: Router<State>) -> Router<State> {
    for way in WAYS_HOME {
        router = router.route(way, get(async || (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, HOME)])));
    }
    for (asset, tag) in ASSETS.iter().zip(TAGS.iter()) {
        router = router.route(asset.path, get(move |headers: HeaderMap| async move { answer(asset, tag, &headers) }));
    }
    router
}

fn answer(asset: &Asset, tag: &'static str, headers: &HeaderMap) -> Response {
    let fields: [(HeaderName, HeaderValue); 5] = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        // Asked for anew each time, so that a new binary never runs with files of an old one.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (ETAG, HeaderValue::from_static(tag)),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
    let is_known = known.flat_map(|line| line.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag);
    match is_known {
        true => (StatusCode::NOT_MODIFIED, fields).into_response(),
        false => (fields, asset.body).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_served_and_every_reference_leads_somewhere() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = format!("/console/{}", name.replace("index.html", ""));
            assert!(is_console(&path), "{name} is not served");
        }
        for asset in ASSETS {
            let references = asset.body.split(['"', '\'']).filter(|text| text.starts_with("./"));
            for reference in references.map(|text| text.trim_start_matches("./")) {
                assert!(is_console(&format!("/console/{reference}")), "{} names {reference:?}", asset.path);
            }
        }
    }

    /// What the policy would stop in the browser is not even tried.
    #[test]
    fn no_file_holds_what_the_policy_forbids() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "<style",
            "style=\"",
            " onclick=",
            " onload=",
            "javascript:",
            "//cdn",
        ];
        for asset in ASSETS {
            for text in forbidden {
                assert!(!asset.body.contains(text), "{} has {text:?}", asset.path);
            }
            let addresses = asset.body.match_indices("://").map(|(at, _)| &asset.body[at.saturating_sub(6)..]);
            for address in addresses {
                let is_harmless = address.contains("://www.w3.org/") || address.contains("://api.example.com");
                assert!(is_harmless, "{}: {}", asset.path, &address[..address.len().min(60)]);
            }
        }
        let scripts: Vec<_> = ASSETS[0].body.split("<script").skip(1).collect();
        assert!(!scripts.is_empty() && scripts.iter().all(|tag| tag.contains("src=\"./")), "a script in the page");
    }

    #[test]
    fn only_the_files_of_the_console_are_open() {
        let cases = [
            ("/", true),
            ("/console", true),
            ("/console/", true),
            ("/console/app.js", true),
            ("/console/app.js/", false),
            ("/console/APP.JS", false),
            ("/console//app.js", false),
            ("/console/../v1/traffic", false),
            ("/console/%2e%2e/v1/traffic", false),
            ("/console/none.js", false),
            ("/consoles", false),
            ("//", false),
            ("/v1/traffic", false),
            ("/metrics", false),
            ("", false),
        ];
        for (path, expected) in cases {
            assert_eq!(is_console(path), expected, "{path}");
        }
    }
}
