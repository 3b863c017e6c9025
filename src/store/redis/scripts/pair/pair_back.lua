-- Refunds in fixed windows and token buckets. It follows `back_head.lua`, `head.lua` and
-- `pair_quotas.lua`; `back.lua` ends it. A reset also deletes corrupt values.

local state = state_of(state_key)
local columns = {}
if state then
  columns = type(state) == 'string' and general.columns_of(state)
end
if not columns and how ~= 'reset' then
  return {now, ''}
end
local ends
ends, at = read_at('<d', numbers, at)
read_quotas(ends)
read_pairs(columns or {})

local state_keys = {state_key}
local changed = false

local function add_states(reply)
  reply[#reply + 1] = changed and write_pairs(columns) or how ~= 'reset' and state or 0
end

