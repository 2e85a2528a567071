-- Requests from users in rotation, one in twenty of them tagged; prints one JSON line at the end.
-- With `plain` as argument: the same request each time.
local heads, turn = {}, 0

function init(args)
    wrk.headers["Host"] = "api.example.com"
    wrk.headers["Accept"] = "*/*"
    local users = args[1] == "plain" and 1 or 10000
    for i = 1, users do
        wrk.headers["X-User-Id"] = "user-" .. i
        wrk.headers["X-Traffic-Tag"] = (users > 1 and i % 20 == 0) and "canary" or nil
        heads[i] = wrk.format("GET")
    end
end

function request()
    turn = turn % #heads + 1
    return heads[turn]
end

function done(summary, latency)
    local e = summary.errors
    print(string.format('{"requests":%d,"duration_us":%d,"errors":%d,"p50_us":%.0f,"p99_us":%.0f}',
        summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
        latency:percentile(50), latency:percentile(99)))
end
