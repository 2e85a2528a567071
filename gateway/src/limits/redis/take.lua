-- Takes units of a quota (GCRA), by the server's clock.
-- KEYS[1]: the key. ARGV: time in which a unit comes back, in us; units at once; fewest units of any use; units wanted.
-- Returns the units that were taken, and the time until the quota is whole again, in us.
local time = redis.call('TIME')
-- Since 2020, so that doubles are exact to a hundredth of a microsecond for decades.
local now = (time[1] - 1577836800) * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local need, want = tonumber(ARGV[3]), tonumber(ARGV[4])
local most = now + interval * burst
local whole = tonumber(redis.call('GET', KEYS[1]) or 0)
-- The upper bound is for a clock that went back.
whole = math.min(math.max(whole, now), most)
local free = math.floor((most - whole) / interval + 0.000001)
local taken = 0
if free >= need then
  taken = math.min(want, free)
  whole = whole + taken * interval
  redis.call('SET', KEYS[1], string.format('%.3f', whole), 'PX', math.ceil((whole - now) / 1000) + 1)
end
return { taken, math.ceil(whole - now) }
