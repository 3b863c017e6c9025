-- Refunds in sliding counters. It follows `back_head.lua` and `counter_head.lua`; `back.lua` ends
-- it. A reset also deletes corrupt values.

if spoilt and how ~= 'reset' then
  return {now, ''}
end

local state_keys = KEYS

local function lower(place, units)
  local amount = math.min(units, count_at(place))
  if amount > 0 then
    add(place, -amount)
    told[place] = text_of('%.0f', count_at(place) - amount)
  end
  return amount
end

-- All quotas share the counts, so the first one refunds for all: a charge in its own tick, and a
-- cost from the oldest tick on.
local amount_taken

local function take_back()
  if amount_taken then
    return amount_taken
  end
  amount_taken = 0
  local from_place, to_place = 1, size
  if made then
    from_place = (made - made % tick) / tick - first + 3 - skipped
    to_place = math.min(from_place, size)
    from_place = math.max(from_place, 1)
  end
  for place = from_place, to_place do
    amount_taken = amount_taken + lower(place, cost - amount_taken)
  end
  return amount_taken
end

local function add_states(reply)
  reply[#reply + 1] = how == 'reset' and string.rep(',', size - 1) or table.concat(told, ',')
end

