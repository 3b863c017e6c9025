-- Ends a drain with an id. The algorithm's part defines these:
--   `fits`       whether the whole cost fits
--   `parts`      the units that each quota took
--   `after(q)`   returns {remaining units, us until it is whole, number and debt of the charge},
--                and us until the cost would fit again; -1 if it never fits
--
-- Reply the deciding part's, if nothing was charged. Otherwise 'charged' and the record. A drain's
-- record ends with a list: for each quota the units that it took, and us until the cost fits.

record = {cost, now, 0}
local drained, charged_most = {}, 0
for q = 1, quotas do
  local results, wait = after(q)
  for place = 4 * q - 3, 4 * q do
    record[#record + 1] = (place % 4 == 1 or place % 4 == 2) and about[place] or tonumber(about[place])
  end
  for _, result in ipairs(results) do
    record[#record + 1] = result
  end
  drained[2 * q - 1], drained[2 * q] = parts[q], fits and 0 or wait
  charged_most = math.max(charged_most, parts[q])
end
if charged_most == 0 then
  return reply
end
record[#record + 1] = drained
redis.call('SET', record_key, cmsgpack.pack(record), 'PX', life)
table.insert(record, 1, 'charged')
return record
