-- Refunds in fixed windows and token buckets. It follows `back_head.lua` and `pair_read.lua`;
-- `back.lua` ends it. A reset also deletes corrupt values.

if spoilt and how ~= 'reset' then
  return {now, ''}
end

local state_keys = {state_key}
local changed = false

local function add_states(reply)
  reply[#reply + 1] = changed and write_pairs() or how ~= 'reset' and state or 0
end

