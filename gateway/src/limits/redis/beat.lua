-- Says that a gateway lives, and returns how many do.
-- KEYS[1]: a sorted set of gateways by when they were heard of last. ARGV: the gateway; how long one counts, in ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], 2 * ARGV[2])
return redis.call('ZCARD', KEYS[1])
