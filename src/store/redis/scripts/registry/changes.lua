-- Returns the changes of a part since a version, and removes records whose time is over. One
-- script, so that the newest version belongs to the changes.
--
-- ARGV  1 the id of the last change that the node has; empty: it has none  2 the most changes
--       3 the most removals  4 us that they stay
-- Reply TIME in us, the newest version, `%state` or empty, whether a part of it is missing (1, else
--       0), the length of the hash, the changes
local state = read_state()
local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', digits(now), 'LIMIT', 0, 50)
for _, name in ipairs(ended) do
  local text = redis.call('HGET', KEYS[1], name)
  -- A server that cannot save its data permits no write, and changes are read all the same.
  local removed = redis.pcall('HDEL', KEYS[1], name)
  if type(removed) == 'table' then
    ended = {}
    break
  end
  redis.call('ZREM', KEYS[2], name)
  if state and text then
    state.fields = state.fields - removed
    state.removals = state.removals + redis.call('ZADD', KEYS[4], digits(version_of(text)), name)
  end
end
if state and #ended > 0 then
  drop_removals(state, tonumber(ARGV[3]), now - tonumber(ARGV[4]))
  write_state(state)
elseif state and redis.call('GET', KEYS[5]) ~= line_of(state) then
  -- The copy alone was lost. A server without memory does not take it back yet.
  redis.pcall('SET', KEYS[5], line_of(state))
end
local last = newest(state)
local changes = {}
if ARGV[1] ~= '' and ARGV[1] ~= digits(last) .. '-0' then
  changes = redis.call('XRANGE', KEYS[3], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
end
local is_damaged = state and not is_whole(state)
return {digits(now), digits(last), state and line_of(state) or '', is_damaged and '1' or '0',
  digits(redis.call('HLEN', KEYS[1])), changes}
