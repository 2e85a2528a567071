"""Whether a proxy does the work that is compared, seen from the upstreams."""

from load import HOST, connect, get

USERS = 2000
PATH = "/api/users/echo"


def probe(port):
    """What is missing for this proxy to be the equal of the others; empty if nothing is."""
    connection = connect(port)
    missing = []

    def ask(user, **headers):
        status, body = get(connection, PATH, {"Host": HOST, "X-User-Id": f"user-{user}", **headers})
        if status != 200:
            raise RuntimeError(f"probe of port {port}: status {status}: {body[:200]}")
        where, head = body.split("\n", 1)
        return *where.split(), head.lower()

    tagged = {ask(i, **{"X-Traffic-Tag": "canary"})[0] for i in range(40)}
    if tagged != {"v2"}:
        missing.append("header canary")

    users = [ask(i) for i in range(USERS)]
    share = sum(version == "v2" for version, _, _ in users) / USERS
    if not 0.08 <= share <= 0.12:
        missing.append(f"10 % split (is {share:.1%})")
    again = [ask(i)[0] for i in range(200)]
    if again != [version for version, _, _ in users[:200]]:
        missing.append("split by user")
    stable = [address for version, address, _ in users if version == "v1"]
    counts = [stable.count(address) for address in set(stable)]
    if len(counts) != 2 or min(counts) < len(stable) / 4:
        missing.append("both v1 instances")

    head = users[-1][2]
    if not head.startswith("get /users/echo "):
        missing.append("path rewrite")
    missing += [name for name in ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id")
                if f"\n{name}: " not in head]
    connection.close()
    return missing
