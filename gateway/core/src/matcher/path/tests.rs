use super::*;

fn parse(kind: &str, text: &str) -> Result<PathMatch, PathError> {
    match kind {
        "exact" => PathMatch::exact(text),
        "prefix" => PathMatch::prefix(text),
        "template" => PathMatch::template(text),
        "regex" => PathMatch::regex(text),
        _ => Ok(PathMatch::Any),
    }
}

#[test]
fn paths() {
    let cases = [
        ("any", "", "/ *", ""),
        ("exact", "/a", "/a", "/a/ /ab /A /a//"),
        ("exact", "/a/", "/a/", "/a /a/b"),
        ("exact", "/", "/", "/a // *"),
        ("prefix", "/api/users", "/api/users /api/users/ /api/users/7 /api/users//", "/api/usersX /api /api/user /x *"),
        ("prefix", "/api/", "/api /api/ /api/x", "/apix /ap"),
        ("prefix", "/", "/ /x // /x/y", "*"),
        (
            "template",
            "/users/{id}/orders",
            "/users/7/orders",
            "/users//orders /users/7/orders/ /users/7 /users/7/8/orders",
        ),
        ("template", "/{a}", "/x", "/ /x/ /x/y * //"),
        ("template", "/{a}/", "/x/", "/x / /x//"),
        ("template", "/f/{rest...}", "/f/a /f/a/b /f/a/ /f//", "/f /f/ /g/a"),
        ("template", "/{a}/{rest...}", "/x/y /x/y/z", "/x /x/ //y"),
        ("regex", "/v[0-9]+/.*", "/v1/ /v22/x/y", "/v/ /x/v1/ /v1"),
        ("regex", "/a|/b", "/a /b", "/ab /a/b"),
    ];
    for (kind, text, yes, no) in cases {
        let path = parse(kind, text).unwrap();
        for (candidates, expected) in [(yes, true), (no, false)] {
            for candidate in candidates.split_whitespace() {
                assert_eq!(path.matches(candidate), expected, "{kind} {text} on {candidate}");
            }
        }
    }
}

#[test]
fn bad_paths_are_refused_with_a_reason() {
    let cases = [
        ("exact", "", "begins with `/`"),
        ("prefix", "api", "begins with `/`"),
        ("exact", "/a?b=1", "match the query with `query`"),
        ("prefix", "/a b", "write it percent-encoded"),
        ("prefix", "/ü", "write it percent-encoded"),
        ("exact", "/users/{id}", "need `template`"),
        ("template", "/a/x{id}", "takes a whole segment"),
        ("template", "/a/{id}.json", "takes a whole segment"),
        ("template", "/a/{b}{c}", "takes a whole segment"),
        ("template", "/a/{id", "takes a whole segment"),
        ("template", "/a/{}", "is no name"),
        ("template", "/a/{...}", "is no name"),
        ("template", "/a/{1}", "is no name"),
        ("template", "/a/{a-b}", "is no name"),
        ("template", "/{a}/{a}", "\"a\" occurs twice"),
        ("template", "/{a...}/b", "can only be the last segment"),
        ("template", "/a", "use `exact`"),
        ("regex", "/a(", "unclosed group"),
    ];
    for (kind, text, expected) in cases {
        let error = parse(kind, text).unwrap_err().to_string();
        assert!(error.contains(expected), "{kind} {text}: {error}");
    }
    assert_eq!(PathMatch::exact(&"/a".repeat(129)).unwrap_err(), PathError::TooDeep(129));
}

#[test]
fn parameters_are_captured() {
    let PathMatch::Template(template) = PathMatch::template("/u/{id}/{rest...}").unwrap() else { unreachable!() };
    let path = "/u/42/a/b";
    let found = template.captures(path).unwrap();
    let texts: Vec<_> = template.params().zip(found.iter().map(|&(start, end)| &path[start..end])).collect();
    assert_eq!(texts, [("id", "42"), ("rest", "a/b")]);
}
