
  -- Debts under other rates. The core's `carried.rs` has the same functions and explains them.

  -- A conversion rounds up to parts of a unit.
  local PARTS, MOST_DEBT = 128, 4503599627370496

  local function is_faster(column, other)
    local rate, than = column.a / column.b, other.a / other.b
    if rate ~= than then
      return rate > than
    end
    return column.a > other.a or column.a == other.a and column.b < other.b
  end

  local function carried(column, quota)
    local till = ends_at(column.a, nil, nil, nil, nil, column.first, column.second)
    if till <= now then
      return {0, 0, ''}
    end
    local rest = column.second % column.b
    local units, parts = (column.second - rest) / column.b, math.ceil(PARTS * rest / column.b)
    local debt = units * quota.b + math.ceil(parts * quota.b / PARTS)
    if debt > MOST_DEBT then
      return {till, MOST_DEBT, ''}
    end
    return {column.first, debt, ''}
  end

  -- The fastest column that no quota has taken.
  local function fastest(columns)
    local first
    for _, column in ipairs(columns) do
      if not column.taken and column.b > 0 and (not first or is_faster(column, first)) then
        first = column
      end
    end
    return first
  end

  -- A column of the same rate, in finer or coarser fractions, that no quota has taken.
  local function rescaled(columns, quota)
    for _, column in ipairs(columns) do
      local is_finer = column.a == PARTS * quota.a and column.b == PARTS * quota.b
      if not column.taken and (is_finer or PARTS * column.a == quota.a and PARTS * column.b == quota.b) then
        return column
      end
    end
  end

  local function pairs_of(columns, kinds)
    local found, left = {}, {}
    local function carry(quota, column)
      if column then
        found[quota.q], column.taken = carried(column, quota), true
      end
    end
    for q, kind in ipairs(kinds) do
      found[q] = take_column(columns, kind[1], kind[2])
    end
    for q, kind in ipairs(kinds) do
      local quota = {q = q, a = kind[1], b = kind[2]}
      if not found[q] then
        carry(quota, rescaled(columns, quota))
      end
      left[#left + 1] = not found[q] and quota or nil
    end
    for _ = 1, #left do
      local quota = fastest(left)
      quota.taken = true
      carry(quota, fastest(columns))
      found[quota.q] = found[quota.q] or {0, 0, ''}
    end
    return found
  end

  return {columns_of = columns_of, pairs_of = pairs_of, others = others}
end
