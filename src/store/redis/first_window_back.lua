-- Sliding window while its slot moves: gives back what first_window.lua charged, only to a segment that still exists.
--
-- KEYS  the segment; window_head.lua says how it is kept
-- ARGV  limit; the bucket that was charged, 0 to 63; cost
--
-- Reply 1 if it was given back, else 0

local HEADER = 8

local limit, i, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local w = limit < 4294967296 and 4 or 8
local format = w == 4 and '>I4' or '>I8'
local current = redis.call('GET', KEYS[1])
local filled = current and (#current - HEADER) / w or 0
if filled <= i then
  return 0
end

-- Every sum from the charged bucket on holds the cost, unless somebody else gave back too much.
local sums = {}
for j = i, filled - 1 do
  local sum = struct.unpack(format, current, HEADER + j * w + 1)
  if sum < cost then
    return 0
  end
  sums[#sums + 1] = struct.pack(format, sum - cost)
end
redis.call('SETRANGE', KEYS[1], string.format('%.0f', HEADER + i * w), table.concat(sums))
return 1
