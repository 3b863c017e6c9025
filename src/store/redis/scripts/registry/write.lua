-- Writes one record of a part together with its change, or a change alone. One script, since a
-- record without its change would reach no node, and a change without its record would be undone
-- by the next load.
--
-- KEYS  1 records (hash: name, text)  2 ends (sorted set: name, us)  3 changes (stream)
-- ARGV  1 name; empty: only the change  2 the version that the record must have, empty: any, 0: none
--       3 a version that the next one exceeds  4 us until it ends, 0: never  5 the text of the
--       record without its first members, empty: remove it  6 the most records  7 the channel to
--       wake the nodes by  8 the most changes  9 us that changes stay  10... fields of the change
-- Reply the word and its values: ok, version, TIME in us, the record before, the record after;
--       stale, the present record; full; none if there is nothing to remove
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local name, expected, body = ARGV[1], ARGV[2], ARGV[5]

local before, after = '', ''
if name ~= '' then
  before = redis.call('HGET', KEYS[1], name) or ''
  local ends = redis.call('ZSCORE', KEYS[2], name)
  if ends and tonumber(ends) <= now then before = '' end
  local version = string.match(before, '^{"version":(%d+)') or '0'
  if expected ~= '' and expected ~= version then return {'stale', before} end
  if body == '' and before == '' then return {'none'} end
  if body ~= '' and before == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then return {'full'} end
end

-- The version is the id of the change. It exceeds TIME, the last change of this server, and what
-- the node has seen, since a failover may have lost changes.
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local last = newest[1] and newest[1][1] or '0-0'
local version = math.max(now, tonumber(string.match(last, '^(%d+)')) + 1, tonumber(ARGV[3]) + 1)
local number = string.format('%.0f', version)

-- XADD is the first write: if it fails, nothing is written.
local ends = 0
if name ~= '' and body ~= '' then
  if ARGV[4] ~= '0' then ends = now + tonumber(ARGV[4]) end
  after = '{"version":' .. number .. ',"at":' .. string.format('%.0f', now)
    .. ',"expires_at":' .. string.format('%.0f', ends) .. ',' .. string.sub(body, 2)
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[8], number .. '-0', 'last', last, 'at', string.format('%.0f', now),
  'name', name, 'before', before, 'after', after, unpack(ARGV, 10))
if after ~= '' then
  redis.call('HSET', KEYS[1], name, after)
elseif name ~= '' then
  redis.call('HDEL', KEYS[1], name)
end
if ends > 0 then
  redis.call('ZADD', KEYS[2], string.format('%.0f', ends), name)
elseif name ~= '' then
  redis.call('ZREM', KEYS[2], name)
end
redis.call('XTRIM', KEYS[3], 'MINID', '~', string.format('%.0f', math.max(0, now - tonumber(ARGV[9]))))
redis.call('PEXPIRE', KEYS[3], string.format('%.0f', tonumber(ARGV[9]) / 1000))
-- The message names the part. The change stands, also where the user may not publish: nodes ask
-- again within a second.
redis.pcall('PUBLISH', ARGV[7], KEYS[3])
return {'ok', number, string.format('%.0f', now), before, after}
