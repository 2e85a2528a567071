use http::{HeaderMap, HeaderName, Method};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::matcher::{self, PathKind, ValueMatch};
use crate::request::RequestView;

/// Reads a route such as `a host=x.example prefix=/api methods=GET,PUT header=x-tag:canary query=v:2`.
fn route(text: &str) -> Route {
    let mut words = text.split(' ');
    let mut route = Route {
        name: words.next().unwrap().into(),
        hosts: Vec::new(),
        path: PathMatch::Any,
        conditions: Vec::new(),
        action: Action::Service(0),
        rewrite: Rewrite::default(),
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
    };
    let equals = |value: &str| ValueMatch::Exact(value.into());
    for (key, value) in words.map(|word| word.split_once('=').unwrap()) {
        match key {
            "host" => route.hosts.push(HostMatch::parse(value).unwrap()),
            "exact" => route.path = PathMatch::exact(value).unwrap(),
            "prefix" => route.path = PathMatch::prefix(value).unwrap(),
            "template" => route.path = PathMatch::template(value).unwrap(),
            "regex" => route.path = PathMatch::regex(value).unwrap(),
            "methods" => {
                let methods = value.split(',').map(|method| method.parse().unwrap()).collect();
                route.conditions.push(Condition::Method(methods));
            }
            "header" => {
                let (name, value) = value.split_once(':').unwrap();
                route.conditions.push(Condition::Header(name.parse().unwrap(), equals(value)));
            }
            "query" => {
                let (name, value) = value.split_once(':').unwrap();
                route.conditions.push(Condition::Query(name.into(), equals(value)));
            }
            _ => unreachable!("{key}"),
        }
    }
    route
}

fn table(routes: &[&str]) -> RouteTable {
    RouteTable::new(routes.iter().map(|text| route(text)).collect())
}

/// Reads a request such as `GET x.example/api?v=2 x-tag:canary` and hands its view to `check`.
fn with_request<R>(text: &str, check: impl FnOnce(&RequestView<'_>) -> R) -> R {
    let mut words = text.split(' ');
    let method: Method = words.next().unwrap().parse().unwrap();
    let target = words.next().unwrap();
    let (target, query) = target.split_once('?').map_or((target, None), |(target, query)| (target, Some(query)));
    let (host, path) = target.split_at(target.find(['/', '*']).unwrap());
    let mut headers = HeaderMap::new();
    for (name, value) in words.map(|word| word.split_once(':').unwrap()) {
        headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    check(&RequestView {
        method: &method,
        host,
        path,
        query,
        headers: &headers,
        client_ip: [127, 0, 0, 1].into(),
        from_trusted_proxy: false,
        claims: None,
        unix_time: 0,
    })
}

fn name(table: &RouteTable, found: Option<Match>) -> &str {
    found.map_or("none", |found| &table.routes()[found.route].name)
}

#[test]
fn the_most_specific_route_wins() {
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)]);
    let cases: &[Case] = &[
        (&[], &[("GET a/", "none")]),
        (&["all"], &[("GET a/", "all"), ("GET /", "all"), ("OPTIONS a*", "all"), ("PUT b//?x", "all")]),
        (&["root prefix=/"], &[("GET a/", "root"), ("GET a//", "root"), ("OPTIONS a*", "none")]),
        (&["any header=x:1", "root prefix=/"], &[("GET a/ x:1", "any"), ("GET a/", "root")]),
        (
            &["any", "deep host=*.b.example.org", "wild host=*.example.org", "exact host=A.B.example.ORG"],
            &[
                ("GET a.b.example.org/", "exact"),
                ("GET a.b.example.org./", "exact"),
                ("GET c.b.example.org/", "deep"),
                ("GET d.c.b.example.org/", "deep"),
                ("GET b.example.org/", "wild"),
                ("GET x.y.example.org/", "wild"),
                ("GET example.org/", "any"),
                ("GET .example.org/", "any"),
                ("GET xexample.org/", "any"),
                ("GET /", "any"),
            ],
        ),
        (
            &[
                "any exact=/a",
                "wild host=*.b prefix=/a",
                "exact host=a.b prefix=/a/b",
                "post host=a.b prefix=/ methods=POST",
            ],
            &[
                ("GET a.b/a/b", "exact"),
                ("POST a.b/a", "post"),
                ("GET a.b/a", "wild"),
                ("GET a.b/x", "none"),
                ("GET b/a", "any"),
                ("GET b/a/b", "none"),
            ],
        ),
        (
            &["short prefix=/api", "long prefix=/api/users/", "exact exact=/api/users"],
            &[
                ("GET a/api/users", "exact"),
                ("GET a/api/users/", "long"),
                ("GET a/api/users/7", "long"),
                ("GET a/api/usersX", "short"),
                ("GET a/api//users", "short"),
                ("GET a/api", "short"),
                ("GET a/apis", "none"),
                ("GET a//api", "none"),
                ("GET a/API", "none"),
            ],
        ),
        (
            &[
                "prefix prefix=/users/7/orders",
                "regex regex=/users/[^/]+/.*",
                "one template=/users/{id}/orders",
                "two template=/{kind}/{id}/orders",
                "rest template=/users/{id}/{rest...}",
                "fixed template=/users/7/{what}",
                "exact exact=/users/7/orders/9",
            ],
            &[
                ("GET a/users/7/orders", "one"),
                ("GET a/shops/7/orders", "two"),
                ("GET a/users//orders", "none"),
                ("GET a/users/7/orders/", "rest"),
                ("GET a/users/7/orders/8", "rest"),
                ("GET a/users/7/orders/9", "exact"),
                ("GET a/users/7/items", "fixed"),
                ("GET a/users/8/", "regex"),
                ("GET a/users/7", "none"),
            ],
        ),
        (&["rest template=/{a}/{b...}", "pair template=/{a}/{b}"], &[("GET a/x/y", "pair"), ("GET a/x/y/z", "rest")]),
        (
            &["first regex=/v[0-9]+/.*", "second regex=/v1/.*", "part regex=/v", "ci regex=(?i)/CASE/x"],
            &[
                ("GET a/v1/x", "first"),
                ("GET a/v/", "none"),
                ("GET a/vx", "none"),
                ("GET a/x/v1/x", "none"),
                ("GET a/case/x", "ci"),
            ],
        ),
        (&["star regex=[*]", "api regex=/a|/b"], &[("OPTIONS a*", "star"), ("GET a/b", "api"), ("GET a/a/b", "none")]),
        (
            &["plain prefix=/", "get prefix=/ methods=GET", "tag prefix=/ header=x-tag:canary", "q prefix=/ query=v:2"],
            &[
                ("GET a/", "get"),
                ("GET a/?v=2 x-tag:canary", "get"),
                ("HEAD a/", "plain"),
                ("PUT a/?v=2 x-tag:canary", "tag"),
                ("PUT a/?v=2", "q"),
                ("PUT a/?v=3&v=2", "plain"),
                ("PUT a/?%76=%32", "q"),
                ("PUT a/ x-tag:blue x-tag:canary", "tag"),
                ("PUT a/ x-tag:canary2", "plain"),
            ],
        ),
        (
            &[
                "one header=a:1",
                "two header=a:1 header=b:1",
                "both header=a:1 header=b:1 query=c:1",
                "q query=c:1 query=d:1",
            ],
            &[
                ("GET a/ a:1 b:1", "two"),
                ("GET a/?c=1 a:1 b:1", "both"),
                ("GET a/?c=1&d=1 a:1", "one"),
                ("GET a/?c=1&d=1", "q"),
                ("GET a/?c=1", "none"),
            ],
        ),
        (&["one exact=/a", "two exact=/a"], &[("GET a/a", "one")]),
        (&["one header=a:1", "two header=b:1"], &[("GET a/ a:1 b:1", "one"), ("GET a/ b:1", "two")]),
        (
            &["post exact=/a methods=POST", "long prefix=/a/b methods=POST", "root prefix=/"],
            &[("GET a/a", "root"), ("POST a/a", "post"), ("GET a/a/b/c", "root"), ("POST a/a/b/c", "long")],
        ),
        (&["slash exact=/a/", "bare exact=/a"], &[("GET a/a/", "slash"), ("GET a/a", "bare"), ("GET a/a//", "none")]),
        (
            &["many host=a host=*.b host=a prefix=/x"],
            &[("GET a/x", "many"), ("GET c.b/x", "many"), ("GET b/x", "none")],
        ),
    ];
    for (routes, requests) in cases {
        let table = table(routes);
        for (text, expected) in *requests {
            let found = with_request(text, |request| table.find(request));
            assert_eq!(name(&table, found), *expected, "{text} among {routes:?}");
        }
    }
    assert!(cases.iter().map(|case| case.1.len()).sum::<usize>() >= 40);
}

#[test]
fn a_match_says_why_and_what_else_was_near() {
    let table = table(&[
        "root prefix=/",
        "canary host=*.b template=/u/{id} header=x:1 query=q:1",
        "post host=a.b prefix=/u methods=POST",
        "other host=z.b prefix=/u",
    ]);
    let seen = |text: &str| {
        with_request(text, |request| {
            let candidates = table.candidates(request);
            let first = candidates.iter().find(|candidate| candidate.failed.is_empty());
            assert_eq!(table.find(request), first.map(|candidate| candidate.found), "{text}");
            let line =
                |candidate: &Candidate| (name(&table, Some(candidate.found)).to_owned(), candidate.failed.clone());
            candidates.iter().map(line).collect::<Vec<_>>()
        })
    };
    let owned =
        |lines: &[(&str, &[usize])]| lines.iter().map(|(n, f)| ((*n).to_owned(), f.to_vec())).collect::<Vec<_>>();
    assert_eq!(seen("GET a.b/u/7"), owned(&[("post", &[0]), ("canary", &[0, 1]), ("root", &[])]));
    assert_eq!(seen("GET a.b/u/7?q=1"), owned(&[("post", &[0]), ("canary", &[0]), ("root", &[])]));
    assert_eq!(seen("POST a.b/u/7?q=1 x:1"), owned(&[("post", &[]), ("canary", &[]), ("root", &[])]));
    let found = with_request("GET a.b/u/7?q=1 x:1", |request| table.find(request)).unwrap();
    assert_eq!(found.why, MatchWhy { host: HostKind::Wildcard, path: PathKind::Template });
}

#[test]
fn finding_a_route_allocates_nothing() {
    let table = table(&[
        "any prefix=/",
        "prefix host=*.example.org prefix=/api methods=GET header=x-tag:canary query=v:2",
        "template host=a.b.example.org template=/{a}/{b}/{c}/{d}/{e}/{f}/{rest...}",
        "regex host=*.example.org regex=/v[0-9]+/.*",
    ]);
    let requests = [
        ("GET a.b.example.org/api/x?v=2&w=1 x-tag:blue x-tag:canary", "prefix"),
        ("GET a.b.example.org/1/2/3/4/5/6/7/8", "template"),
        ("GET a.b.example.org/v12/x", "regex"),
        ("GET a.b.example.com/x", "any"),
    ];
    for (text, expected) in requests {
        with_request(text, |request| {
            // The first search fills the cache of the engine of the regular expressions.
            assert_eq!(name(&table, table.find(request)), expected);
            let used = allocation_counter::measure(|| assert!(table.find(request).is_some()));
            assert_eq!(used.count_total, 0, "{text}");
        });
    }
    let control = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(control.count_total, 1, "the counter counts");
}

/// What the index has to agree with: every route on every host is tried, and the least rank wins.
fn by_scan(routes: &[Route], request: &RequestView<'_>) -> Option<Match> {
    let any = [HostMatch::Any];
    let hosts = |route: &'_ Route| if route.hosts.is_empty() { any.to_vec() } else { route.hosts.clone() };
    let entries =
        routes.iter().enumerate().flat_map(|(order, route)| hosts(route).into_iter().map(move |h| (order, h)));
    let fits = |order: usize, host: &HostMatch| {
        let route = &routes[order];
        host.matches(request.host) && route.path.matches(request.path) && matcher::all(&route.conditions, request)
    };
    let best = entries.filter(|(order, host)| fits(*order, host)).min_by_key(|(o, h)| Rank::new(&routes[*o], h, *o));
    best.map(|(route, host)| Match { route, why: MatchWhy { host: host.kind(), path: routes[route].path.kind() } })
}

fn any_path() -> impl Strategy<Value = String> {
    let segments = prop::collection::vec(select(vec!["a", "b", "ab", ""]), 0..5);
    prop_oneof![20 => segments.prop_map(|segments| format!("/{}", segments.join("/"))), 1 => Just("*".to_owned())]
}

fn any_route() -> impl Strategy<Value = String> {
    let hosts = subsequence(vec!["host=a.x", "host=b.a.x", "host=*.x", "host=*.a.x", "host=*"], 0..3);
    let literal =
        prop::collection::vec(select(vec!["a", "b", "ab", ""]), 1..4).prop_map(|s| format!("/{}", s.join("/")));
    let template =
        select(vec!["/{p}", "/a/{p}", "/{p}/a", "/{p}/{q}", "/a/{r...}", "/{p}/b/{r...}", "/{r...}", "/{p}/"]);
    let regex = select(vec!["/a.*", "/a/b", "/(a|b)/.*", "/a/(a|b)?", "/[ab]+", ".*", "/a/b.*", "[*]", "/ab?/b"]);
    let path = prop_oneof![
        Just(String::new()),
        literal.clone().prop_map(|path| format!("exact={path}")),
        literal.prop_map(|path| format!("prefix={path}")),
        template.prop_map(|path| format!("template={path}")),
        regex.prop_map(|path| format!("regex={path}")),
    ];
    let conditions = subsequence(vec!["methods=GET", "header=h:1", "header=i:1", "query=q:1", "query=r:1"], 0..4);
    (hosts, path, conditions).prop_map(|(hosts, path, conditions)| {
        let words =
            ["r"].into_iter().chain(hosts).chain(Some(&*path).filter(|path| !path.is_empty())).chain(conditions);
        words.collect::<Vec<_>>().join(" ")
    })
}

fn any_request() -> impl Strategy<Value = String> {
    let host = select(vec!["a.x", "b.a.x", "c.b.a.x", "x", "y", "", ".x", "a.x."]);
    let query = select(vec!["", "?q=1", "?q=1&r=1", "?r=1"]);
    let headers = select(vec!["", " h:1", " h:1 i:1", " i:0 i:1"]);
    (select(vec!["GET", "PUT"]), host, any_path(), query, headers)
        .prop_map(|(method, host, path, query, headers)| format!("{method} {host}{path}{query}{headers}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_index_agrees_with_a_scan(
        routes in prop::collection::vec(any_route(), 0..30),
        requests in prop::collection::vec(any_request(), 1..20),
    ) {
        let parsed: Vec<Route> = routes.iter().map(|text| route(text)).collect();
        let table = RouteTable::new(parsed.clone());
        for text in &requests {
            let (found, scanned, explained) = with_request(text, |request| {
                let explained = table.candidates(request).into_iter().find(|c| c.failed.is_empty()).map(|c| c.found);
                (table.find(request), by_scan(&parsed, request), explained)
            });
            prop_assert_eq!(found, scanned, "{} among {:?}", text, routes);
            prop_assert_eq!(found, explained, "{} among {:?}", text, routes);
        }
    }
}
