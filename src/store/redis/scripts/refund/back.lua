-- Ends what `back_head.lua` begins. The algorithm's part tells `state_keys`, those that count or may; `take_back(q)`,
-- which takes `cost` units back and returns how many there were; and `add_states(reply)`.

local given = 0
if how == 'reset' then
  redis.call('DEL', unpack(state_keys))
  redis.call('SET', reset_key, string.format('%.0f', now), 'PX', life)
elseif cost > 0 then
  for q = 1, quotas do
    if not made or number[q] then
      given = math.max(given, take_back(q))
    end
  end
end
if record and record[3] == 0 then
  record[3] = 1
  redis.call('SET', record_key, cmsgpack.pack(record), 'KEEPTTL')
end
local reply = {now, given}
add_states(reply)
return reply
