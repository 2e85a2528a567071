use http::{HeaderMap, Method};

use super::*;

fn on(kind: &str, text: &str) -> PathMatch {
    match kind {
        "exact" => PathMatch::exact(text).unwrap(),
        "prefix" => PathMatch::prefix(text).unwrap(),
        "template" => PathMatch::template(text).unwrap(),
        "regex" => PathMatch::regex(text).unwrap(),
        _ => PathMatch::Any,
    }
}

#[test]
fn prefixes_are_replaced_and_the_rest_is_kept() {
    let cases = [
        ("/api/users", "/users", "/api/users/7", "/users/7"),
        ("/api/users", "/users", "/api/users", "/users"),
        ("/api/users", "/users", "/api/users/", "/users/"),
        ("/api/users/", "/users/", "/api/users/7", "/users/7"),
        ("/api", "/", "/api", "/"),
        ("/api", "/", "/api/", "/"),
        ("/api", "/", "/api/x%2Fy", "/x%2Fy"),
        ("/", "/v1", "/", "/v1/"),
        ("/", "/v1", "/a/b", "/v1/a/b"),
    ];
    for (matched, with, path, expected) in cases {
        let matched = on("prefix", matched);
        let rewrite = PathRewrite::prefix(&matched, with).unwrap();
        assert_eq!(rewrite.apply(&matched, path), expected, "{matched} by {with} on {path}");
    }
}

#[test]
fn what_does_not_change_is_borrowed() {
    let prefix = on("prefix", "/api");
    let borrowed = [
        (PathRewrite::Keep, "/api/x"),
        (PathRewrite::prefix(&prefix, "/api/").unwrap(), "/api/x"),
        (PathRewrite::prefix(&prefix, "/").unwrap(), "/api/x"),
        (PathRewrite::path(&prefix, "/fixed").unwrap(), "/api/x"),
    ];
    for (rewrite, path) in borrowed {
        assert!(matches!(rewrite.apply(&prefix, path), Cow::Borrowed(_)), "{rewrite:?}");
    }
}

#[test]
fn whole_paths_take_parameters() {
    let cases = [
        ("template", "/users/{id}/orders/{no}", "/o/{no}/of/{id}", "/users/7/orders/9", "/o/9/of/7"),
        ("template", "/f/{rest...}", "/{rest}", "/f/a/b", "/a/b"),
        ("template", "/f/{a}", "/fixed", "/f/a", "/fixed"),
        ("regex", "/v(?<major>[0-9]+)/(.*)", "/api/{major}/x", "/v12/y", "/api/12/x"),
        ("exact", "/old", "/new", "/old", "/new"),
    ];
    for (kind, matched, text, path, expected) in cases {
        let matched = on(kind, matched);
        let rewrite = PathRewrite::path(&matched, text).unwrap();
        assert_eq!(rewrite.apply(&matched, path), expected, "{matched} to {text} on {path}");
    }
}

#[test]
fn bad_rewrites_are_refused_with_a_reason() {
    let template = on("template", "/users/{id}/{no}");
    let cases = [
        (PathRewrite::prefix(&template, "/x").err(), "only if the route matches a `prefix`"),
        (PathRewrite::prefix(&PathMatch::Any, "x").err(), "is no path"),
        (PathRewrite::path(&template, "/x?y=1").err(), "is no path"),
        (PathRewrite::path(&template, "/{uid}").err(), "it has id, no"),
        (PathRewrite::path(&PathMatch::Any, "/{uid}").err(), "it has none"),
        (PathRewrite::path(&template, "/{id").err(), "brace"),
        (PathRewrite::path(&template, "/id}/{id}").err(), "brace"),
        (Rewrite::default().with_host("a b").err(), "is no host"),
        (Rewrite::default().with_host("u@h").err(), "is no host"),
        (RedirectStatus::new(304).err(), "expected 301"),
    ];
    for (error, expected) in cases {
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn locations() {
    let to = |code| Redirect::new(RedirectStatus::new(code).unwrap(), PathRewrite::Keep);
    let prefix = on("prefix", "/old");
    let moved = Redirect::new(RedirectStatus::new(308).unwrap(), PathRewrite::prefix(&prefix, "/new").unwrap());
    let https = to(301).with_scheme("https").unwrap();
    let plain = ("http", None);
    let cases = [
        (&moved, plain, "a.example", "/old/x", Some("q=1"), "http://a.example/new/x?q=1"),
        (&moved, ("http", Some(8080)), "a.example", "/old", None, "http://a.example:8080/new"),
        (&moved, ("https", Some(443)), "a.example", "/old", None, "https://a.example/new"),
        (&moved, plain, "", "/old//evil.example", None, "/new//evil.example"),
        (&https, ("http", Some(8080)), "a.example", "/old", Some(""), "https://a.example/old?"),
        (&https, plain, "", "//evil.example", None, "/evil.example"),
        (&https.clone().with_port(8443), plain, "[::1]", "/", None, "https://[::1]:8443/"),
        (&https.clone().without_query(), plain, "a", "/", Some("q"), "https://a/"),
        (&to(302).with_host("b.example").unwrap(), ("http", Some(81)), "a", "/x", None, "http://b.example/x"),
    ];
    let headers = HeaderMap::new();
    for (redirect, (scheme, port), host, path, query, expected) in cases {
        let request = RequestView {
            method: &Method::GET,
            host,
            path,
            query,
            headers: &headers,
            client_ip: [127, 0, 0, 1].into(),
            from_trusted_proxy: false,
            claims: None,
            unix_time: 0,
        };
        assert_eq!(redirect.location(&prefix, &request, Origin { scheme, port }), expected);
    }
    assert!(to(301).with_host("a:80").is_err() && to(301).with_host("[::1]").is_ok());
    assert!(to(301).with_scheme("ftp").is_err());
}
