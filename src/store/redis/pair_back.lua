-- What `back.lua` does with fixed windows and token buckets; `back_head.lua` and `pair_read.lua` precede. A reset
-- deletes also what is nobody's count.

if spoilt and how ~= 'reset' then
  return {now, ''}
end

local state_keys = {state_key}
local changed = false

local function add_states(reply)
  if changed then
    write_pairs()
  end
  reply[#reply + 1] = redis.call('GET', state_key) or 0
end

