-- Ends a refund that `back_head.lua` begins. The algorithm's part defines these:
--   `state_keys`          the keys with counts
--   `take_back(q)`        refunds up to `cost` units of a quota, and returns how many
--   `add_states(reply)`   adds the states after the refund

local given = 0
if how == 'reset' then
  redis.call('DEL', unpack(state_keys))
  redis.call('SET', reset_key, string.format('%.0f', now), 'PX', life)
elseif cost > 0 and (not till or now < till) then
  for q = 1, quotas do
    cost = parts[q] or cost
    if cost > 0 and (not made or number[q]) then
      given = math.max(given, take_back(q))
    end
  end
end
if record and record[3] == 0 then
  record[3] = 1
  record[#record + 1] = drained
  redis.call('SET', record_key, cmsgpack.pack(record), 'KEEPTTL')
end
local reply = {now, given}
add_states(reply)
return reply
