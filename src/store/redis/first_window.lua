-- Sliding window while its slot moves: charges one cost to one quota's current segment, before anybody knows whether it
-- fits with the previous one. Calls of several keys are refused while a slot moves; this one is of one key. What it
-- does not see is read next, and the charge is given back (first_window_back.lua) if it was too much. So whoever reads
-- sees what others charged before it, and never is too much admitted.
--
-- For `hold` us it is a reservation: it marks the segment, and nobody takes a denial for final.
--
-- KEYS  the segment; window_head.lua says how it is kept
-- ARGV  its first instant, us; length of a bucket, us; limit; cost (0: only look); hold
--       [now]           instead of TIME, us; tests only
--
-- Reply {TIME}                   when TIME is not within the segment: nothing was decided
--       {TIME, 1 if it was charged else 0, the segment as it was before, false where there was none}

local HEADER = 8

local start, f, limit, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local hold, now = tonumber(ARGV[5]), nil
if ARGV[6] then
  now = tonumber(ARGV[6])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if now < start or now >= start + 64 * f then
  return {now}
end

local w = limit < 4294967296 and 4 or 8
local format = w == 4 and '>I4' or '>I8'
local i = math.floor((now - start) / f)
local current = redis.call('GET', KEYS[1])
local total = current and struct.unpack(format, current, #current - w + 1) or 0
if cost == 0 or total + cost > limit then
  return {now, 0, current}
end

local sum = struct.pack(format, total + cost)
local filled = current and (#current - HEADER) / w
local mark = struct.pack('>I8', math.max(current and struct.unpack('>I8', current) or 0, now + hold))
if not current then
  -- As window.lua: it matters until its last bucket has left the window; one second more spares the edge.
  local ttl = string.format('%.0f', math.ceil((start + 128 * f - now) / 1000) + 1000)
  redis.call('SET', KEYS[1], mark .. string.rep('\0', i * w) .. sum, 'PX', ttl)
elseif filled <= i then
  redis.call('APPEND', KEYS[1], string.rep(struct.pack(format, total), i - filled) .. sum)
else
  -- The current bucket, and after a step back all later ones as well.
  local sums = {}
  for j = i, filled - 1 do
    sums[#sums + 1] = struct.pack(format, struct.unpack(format, current, HEADER + j * w + 1) + cost)
  end
  redis.call('SETRANGE', KEYS[1], string.format('%.0f', HEADER + i * w), table.concat(sums))
end
if current then
  redis.call('SETRANGE', KEYS[1], 0, mark)
end
return {now, 1, current}
