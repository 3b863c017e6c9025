-- A check with an id: once charged, its record answers it. The deciding part follows, and
-- `once.lua` ends it. These arguments follow those of that part. The script reads them from the
-- end:
--
-- KEYS  ..., the record
--
-- ARGV  ..., for each quota the name of its counter, its name, limit and window, us
--       four times the number of quotas
--       TTL of the record, ms
--       1 if a replica must acknowledge the answer, else 0
--
-- Reply the deciding part's, if nothing was charged. Otherwise 'charged' or 'replayed', and the
--       record: cost, TIME, 1 if refunded. For each quota the four arguments follow, the remaining
--       units, us until it is whole, and number and debt of the charge.

local record_key, is_durable = table.remove(KEYS), table.remove(ARGV) == '1'
local life, about = table.remove(ARGV), {}
for i = tonumber(table.remove(ARGV)), 1, -1 do
  about[i] = table.remove(ARGV)
end
local record, drained_before = record_of(record_key)
if record then
  if is_durable then
    -- WAIT covers only writes of this connection. Another one may have written the record.
    redis.call('PEXPIRE', record_key, math.max(1, redis.call('PTTL', record_key)))
  end
  record[#record + 1] = drained_before
  table.insert(record, 1, 'replayed')
  return record
end

