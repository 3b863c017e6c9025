-- Returns the changes of a part since a version, and removes records whose time is over. One
-- script, so that the newest version belongs to the changes.
--
-- KEYS  1 records (hash: name, text)  2 ends (sorted set: name, us)  3 changes (stream)
-- ARGV  1 the id of the last change that the node has; empty: it has none  2 the most changes
-- Reply TIME in us, the id of the newest change or 0-0, the changes
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, 50)) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
end
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local last = newest[1] and newest[1][1] or '0-0'
local changes = {}
if ARGV[1] ~= '' and ARGV[1] ~= last then
  changes = redis.call('XRANGE', KEYS[3], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
end
return {string.format('%.0f', now), last, changes}
