-- Writes records and removals that a node has and this part lacks, each with its version. For each
-- name the greater version stands, so any number of nodes may do so at once, in any order. A record
-- that is there gets its end again, which may be lost alone. The last page makes the part complete,
-- and adds one entry to the log if the node wrote something.
--
-- ARGV  1 the generation of a part that has none; empty: more pages follow  2 the newest version
--       that the node knows  3 the greatest version among removals that it has dropped  4 a random
--       number, so that no other change has the version  5 the channel to wake the nodes by  6 the
--       most changes, and removals  7 us that both stay  8 the author  9 how many records the pages
--       before have written  10 how many removals  11... by fours: name, version, the text of the
--       record or empty for a removal, when it ends in us, 0: never
-- Reply how many records, and how many removals, are written by now. Of the last page also
--       `%state`, and the newest version before this entry of the log
local state = read_state()
local counted = state or {fields = 0, removals = 0, dropped = 0}
local records, removals = tonumber(ARGV[9]), tonumber(ARGV[10])
for place = 11, #ARGV, 4 do
  local name, version, text, ends = ARGV[place], tonumber(ARGV[place + 1]), ARGV[place + 2], tonumber(ARGV[place + 3])
  local present = version_of(redis.call('HGET', KEYS[1], name) or '')
  local removed = tonumber(redis.call('ZSCORE', KEYS[4], name) or 0)
  if version == present and ends > 0 then
    redis.call('ZADD', KEYS[2], digits(ends), name)
  elseif version > present and version > removed then
    if text == '' then
      remove(counted, name, version)
      removals = removals + 1
    elseif ends == 0 or ends > now then
      put(counted, name, text, ends)
      records = records + 1
    end
  end
end
if ARGV[1] == '' then
  if state then write_state(state) end
  return {digits(records), digits(removals)}
end

local before = newest(state)
-- A node that starts makes the part complete without what it has never had.
local is_less = state and not is_whole(state)
if not state then
  state = {generation = ARGV[1], birth = now, dropped = 0}
end
state.newest = math.max(before, tonumber(ARGV[2]))
-- The newest version follows no change that a node may know, so the nodes compare the whole part.
if is_less or records + removals > 0 then
  state.newest = math.max(now, state.newest + 1) + tonumber(ARGV[4])
end
state.dropped = math.max(state.dropped, tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], '%state', '')
redis.call('ZADD', KEYS[2], '+inf', '%')
redis.call('ZADD', KEYS[4], '+inf', '%')
state.fields = redis.call('HLEN', KEYS[1])
state.removals = #redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(+inf')
drop_removals(state, tonumber(ARGV[6]), now - tonumber(ARGV[7]))
if records + removals > 0 then
  local reason = 'Redis had lost ' .. digits(records) .. ' overrides and ' .. digits(removals)
    .. ' removals, which a node wrote back; changes after version ' .. digits(before) .. ' are missing here'
  log(state.newest, state.newest, ARGV[6], ARGV[7], {'kind', 'restore', 'by', ARGV[8], 'reason', reason})
end
write_state(state)
wake(ARGV[5])
return {digits(records), digits(removals), line_of(state), digits(before)}
