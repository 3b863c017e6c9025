  -- Gives debts under other rates to the quotas without a pair. The core's `carried.rs` has the same
  -- functions and explains them.
  local function carry(found, columns, kinds)
    -- A conversion rounds up to parts of a unit.
    local PARTS, MOST_DEBT = 128, 4503599627370496

    local function is_faster(column, other)
      local rate, than = column.a / column.b, other.a / other.b
      if rate ~= than then
        return rate > than
      end
      return column.a > other.a or column.a == other.a and column.b < other.b
    end

    -- A tail that forgets all charges, but not the line.
    local function kept_line(tail)
      local mark, _, last, line = struct.unpack('>I8I8I8I8', tail)
      return line > now and struct.pack('>I8I8I8I8I8I8I8', mark, last + 1, last, line, 0, 0, 0) or ''
    end

    local function convert(quota, column)
      if not column then
        return
      end
      column.taken = true
      local till = ends_at(column.a, nil, nil, nil, nil, column.first, column.second)
      local rest = column.second % column.b
      local units, parts = (column.second - rest) / column.b, math.ceil(PARTS * rest / column.b)
      local debt = units * quota.b + math.ceil(parts * quota.b / PARTS)
      local tail = column.tail ~= '' and kept_line(column.tail) or ''
      if till <= now then
        found[quota.q] = {0, 0, tail}
      elseif debt > MOST_DEBT then
        found[quota.q] = {till, MOST_DEBT, tail, till}
      else
        found[quota.q] = {column.first, debt, tail, till}
      end
    end

    -- The fastest of those that are not taken.
    local function fastest(all)
      local first
      for _, column in ipairs(all) do
        if not column.taken and column.b > 0 and (not first or is_faster(column, first)) then
          first = column
        end
      end
      return first
    end

    local left = {}
    for q, kind in ipairs(kinds) do
      local quota = not found[q] and {q = q, a = kind[1], b = kind[2]}
      -- The same rate, in finer or coarser fractions.
      for _, column in ipairs(quota and columns or {}) do
        local is_finer = column.a == PARTS * quota.a and column.b == PARTS * quota.b
        if not found[q] and not column.taken
          and (is_finer or PARTS * column.a == quota.a and PARTS * column.b == quota.b) then
          convert(quota, column)
        end
      end
      left[#left + 1] = not found[q] and quota or nil
    end
    for _ = 1, #left do
      local quota = fastest(left)
      quota.taken = true
      convert(quota, fastest(columns))
    end
  end

