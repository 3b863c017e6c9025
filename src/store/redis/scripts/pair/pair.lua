-- Decides a list of costs for one key against all quotas of its policy, and charges the allowed
-- ones. It serves `hold.lua` and `once.lua`, and follows `pair_read.lua`.
--
-- Deciding and charging must be one step. With two trips, two callers spend the same free units.
--
-- ARGV  the costs, in order, as runs: cost, repetitions.
--
-- Reply {TIME, the former state, or 0 without one}.

if spoilt then
  return {now, ''}
end

-- Decides the costs in order. Each is charged to all quotas or to none.
local reply, charged, room = {now, state or 0}, 0, math.min(unpack(left))
for r = runs, #ARGV - 1, 2 do
  local cost, times = tonumber(ARGV[r]), tonumber(ARGV[r + 1])
  if cost > 0 then
    local fit = math.min(times, math.floor((room - charged) / cost))
    charged = charged + math.max(fit, 0) * cost
  end
end

if charged > 0 then
  for q = 1, quotas do
    if tail[q] ~= '' and not goes_on(counted[q], tail[q]) then
      tail[q] = ''
    end
    first[q], second[q] = charge(number_of[q][1], number_of[q][2], from[q], counted[q], charged)
  end
end

-- Writes the charge.
local keep = write_pairs

-- The remaining units of a quota, and us until it is whole.
local function standing_after(q)
  local a, b, _, d, e, f = unpack(number_of[q])
  return left[q] - charged, ends_at(a, b, d, e, f, first[q], second[q]) - now
end

