-- The functions of all scripts of a part of the records.
--
-- KEYS  1 records (hash: name, text; and `%state`)  2 ends (sorted set: name, us)
--       3 changes (stream)  4 removals (sorted set: name, version)  5 a copy of `%state`, since MGET
--       asks many parts at once
--
-- `%state` is "generation birth newest dropped fields removals": whose registry this is and since
-- when (us), the newest version, the greatest version among removals that were dropped, the length
-- of the hash, and the number of removals. A part without it is new, of a former version, or lost.
-- The member `%` stays in both sorted sets, so that a lost one differs from an empty one.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function digits(number) return string.format('%.0f', number) end

local function read_state()
  local line = redis.call('HGET', KEYS[1], '%state')
  if not line then return nil end
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  if #words ~= 6 then return nil end
  return {generation = words[1], birth = tonumber(words[2]), newest = tonumber(words[3]),
    dropped = tonumber(words[4]), fields = tonumber(words[5]), removals = tonumber(words[6])}
end

local function line_of(state)
  local numbers = {state.birth, state.newest, state.dropped, state.fields, state.removals}
  for place, number in ipairs(numbers) do numbers[place] = digits(number) end
  return state.generation .. ' ' .. table.concat(numbers, ' ')
end

local function write_state(state)
  local line = line_of(state)
  redis.call('HSET', KEYS[1], '%state', line)
  redis.call('SET', KEYS[5], line)
end

-- Whether nothing of the part is missing.
local function is_whole(state)
  return state.fields == redis.call('HLEN', KEYS[1]) and redis.call('ZSCORE', KEYS[2], '%')
    and redis.call('ZSCORE', KEYS[4], '%')
end

-- The newest version: that of the state, or of the log, which has also notes.
local function newest(state)
  local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
  local logged = last[1] and tonumber(string.match(last[1][1], '^(%d+)')) or 0
  return math.max(logged, state and state.newest or 0)
end

local function version_of(text) return tonumber(string.match(text, '^{"version":(%d+)') or 0) end

-- Puts a record in place of any other of its name. `ends` is us, 0 for never.
local function put(state, name, text, ends)
  state.fields = state.fields + redis.call('HSET', KEYS[1], name, text)
  if ends > 0 then
    redis.call('ZADD', KEYS[2], digits(ends), name)
  else
    redis.call('ZREM', KEYS[2], name)
  end
  state.removals = state.removals - redis.call('ZREM', KEYS[4], name)
end

-- Removes a record, and notes the version of its removal: a node that was away may still have it.
-- HDEL is the first write, since a server without memory permits it, and then the others.
local function remove(state, name, version)
  state.fields = state.fields - redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
  state.removals = state.removals + redis.call('ZADD', KEYS[4], digits(version), name)
end

-- Drops up to 50 removals beyond `most`, or of before `since`.
local function drop_removals(state, most, since)
  local lowest = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(+inf', 'WITHSCORES', 'LIMIT', 0, 50)
  for place = 1, #lowest, 2 do
    local version = tonumber(lowest[place + 1])
    if state.removals <= most and version >= since then break end
    redis.call('ZREM', KEYS[4], lowest[place])
    state.removals = state.removals - 1
    state.dropped = math.max(state.dropped, version)
  end
end

-- Adds a change to the log. `last` is the version of the one before.
local function log(version, last, most, kept, fields)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', most, digits(version) .. '-0', 'last', digits(last) .. '-0',
    'at', digits(now), unpack(fields))
  redis.call('XTRIM', KEYS[3], 'MINID', '~', digits(math.max(0, now - tonumber(kept))))
  redis.call('PEXPIRE', KEYS[3], digits(tonumber(kept) / 1000))
end

-- Changes nothing, by each command of a change. So a user who lacks one of these rights fails before
-- anything is written.
local function rehearse(state, kept)
  write_state(state)
  redis.call('HDEL', KEYS[1], '')
  redis.call('ZADD', KEYS[2], '+inf', '%')
  redis.call('ZREM', KEYS[2], '')
  redis.call('ZRANGEBYSCORE', KEYS[4], '0', '0', 'LIMIT', 0, 1)
  redis.call('XTRIM', KEYS[3], 'MINID', '~', '0')
  redis.call('PEXPIRE', KEYS[3], digits(tonumber(kept) / 1000))
end

-- Wakes the nodes. A user without the right to publish loses nothing: nodes ask again soon.
local function wake(channel) redis.pcall('PUBLISH', channel, KEYS[3]) end
